"""Training tokens per second on one core: ours, a plain loop and TRL's GRPO trainer, on the same model and data.

One training batch is trained again and again: forward, backward, clipping, AdamW; generation and rewards are not in
the figure. Tokens are those of all trajectories, prompts included. Every contender's gradient norm is printed: equal
norms mean that they computed the same thing.

    python -m bench.trainer_tokens [--rounds N] [--workload NAME]

TRL gets an environment of its own in .cache/bench-trl, made on the first run.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from seatrial_api.spec.algorithm import LossSpec, OptimizerSpec
from seatrial_api.spec.backend import TrainerSpec
from seatrial_api.spec.model import ContextLength, ModelSpec, Source
from seatrial_trainer.algorithms.advantages import dr_grpo
from seatrial_trainer.policy.batch import Minibatch, TrainingSequence
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend

ROOT = Path(__file__).parent.parent
TRL_PYTHON = ROOT / ".cache" / "bench-trl" / "bin" / "python"
TRL_PACKAGES = ["trl==1.16.0", "torch==2.13.0"]
VOCABULARY = 634
MICROBATCH_TOKENS = 1024


@dataclass(frozen=True)
class Workload:
    """Groups of trajectories of one length distribution."""

    num_groups: int
    group_size: int
    num_prompt_tokens: int
    mean_tokens: int
    """Of a trajectory with its prompt."""
    spread: float
    """Standard deviation of the length, as a share of the mean."""
    sampled_share: float
    """Share of the tokens after the prompt that the policy sampled."""
    trl_batch_sizes: tuple[int, ...]
    shares_prompts: bool = True
    """Whether the trajectories of a group start with the same prompt."""


WORKLOADS = {
    "short": Workload(16, 8, 52, 127, 0.3, 0.72, (8, 16, 32)),
    "short, every prompt its own": Workload(16, 8, 52, 127, 0.3, 0.72, (), shares_prompts=False),
    "long": Workload(4, 8, 500, 2000, 0.0, 0.4, (1, 2, 4)),
}


@dataclass(frozen=True)
class Trajectory:
    """One trajectory as token ids, with what the policy sampled marked."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]
    reward: float


@dataclass(frozen=True)
class Result:
    """One training step."""

    cpu_seconds: float
    grad_norm: float


def make_groups(workload: Workload) -> list[list[Trajectory]]:
    """Random trajectories: turns of the policy and of tools alternate in runs of some ten tokens."""
    rng = random.Random(0)  # noqa: S311  a benchmark's data
    groups = []
    for _ in range(workload.num_groups):
        prompt = [rng.randrange(3, VOCABULARY) for _ in range(workload.num_prompt_tokens)]
        group = []
        for _ in range(workload.group_size):
            if not workload.shares_prompts:
                prompt = [rng.randrange(3, VOCABULARY) for _ in range(workload.num_prompt_tokens)]
            length = round(rng.gauss(workload.mean_tokens, workload.spread * workload.mean_tokens))
            count = max(length - len(prompt), 10)
            mask: list[int] = []
            while len(mask) < count:
                mask += [int(rng.random() < workload.sampled_share)] * rng.randint(5, 15)
            mask = [1, *mask[1:count]]
            completion = [rng.randrange(3, VOCABULARY) for _ in range(count)]
            group.append(Trajectory(prompt, completion, mask, reward=float(rng.random() < 0.4)))
        groups.append(group)
    return groups


def make_model(directory: Path) -> None:
    """A Qwen3 of 869k random parameters."""
    from transformers import AutoModelForCausalLM, Qwen3Config  # noqa: PLC0415  heavy

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


def sequences_of(groups: list[list[Trajectory]], backend: TorchBackend) -> list[TrainingSequence]:
    """On-policy sequences with the advantages and weights that TRL's `dapo` without scaling gives."""
    flat = [trajectory for group in groups for trajectory in group]
    ids = [t.prompt + t.completion for t in flat]
    logprobs = backend.logprobs(ids)
    advantages = [a for group in groups for a in dr_grpo([t.reward for t in group])]
    weight = 1 / sum(sum(t.mask) for t in flat)
    return [
        TrainingSequence(tokens, [0] * len(t.prompt) + t.mask, values, advantage, weight)
        for tokens, t, values, advantage in zip(ids, flat, logprobs, advantages, strict=True)
    ]


def ours(model: Path, groups: list[list[Trajectory]], dtype: str) -> Callable[[], Result]:
    """The torch backend."""
    setup = PolicySetup(
        ModelSpec(source=Source(path=str(model)), dtype=dtype, context_length=ContextLength(train=4096)),
        TrainerSpec(),
        OptimizerSpec(),
    )
    backend = TorchBackend(setup, model)
    minibatch = Minibatch(sequences_of(groups, backend), LossSpec(name="ppo-clip", low=0.2, high=0.2))

    def step() -> Result:
        started = time.process_time()
        backend.forward_backward(minibatch)
        stats = backend.optim_step(1e-9)
        return Result(time.process_time() - started, stats.grad_norm)

    return step


def plain_loop(model: Path, groups: list[list[Trajectory]]) -> Callable[[], Result]:
    """What one writes by hand: padded micro-batches sorted by length, logits on sampled tokens only."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  heavy

    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-9, fused=True)
    advantages = [a for group in groups for a in dr_grpo([t.reward for t in group])]
    rows = sorted(
        zip([t for group in groups for t in group], advantages, strict=True),
        key=lambda row: -len(row[0].prompt + row[0].completion),
    )
    num_sampled = sum(sum(t.mask) for t, _ in rows)
    size = max(1, MICROBATCH_TOKENS * len(rows) // sum(len(t.prompt + t.completion) for t, _ in rows))

    def backward(part: list[tuple[Trajectory, float]]) -> None:
        width = max(len(t.prompt + t.completion) for t, _ in part)
        ids = torch.tensor([pad(t.prompt + t.completion, width) for t, _ in part])
        mask = torch.tensor([pad([0] * len(t.prompt) + t.mask, width) for t, _ in part])[:, 1:].bool()
        advantage = torch.tensor([a for _, a in part])[:, None].expand(mask.shape)[mask]
        hidden = module.model(ids[:, :-1], use_cache=False).last_hidden_state[mask]
        logprobs = module.lm_head(hidden).log_softmax(-1).gather(1, ids[:, 1:][mask][:, None])[:, 0]
        ratio = (logprobs - logprobs.detach()).exp()
        (-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum() / num_sampled).backward()

    def step() -> Result:
        started = time.process_time()
        for start in range(0, len(rows), size):
            backward(rows[start : start + size])
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return Result(time.process_time() - started, float(norm))

    return step


def pad(values: list[int], width: int) -> list[int]:
    """Fill up with zeros on the right."""
    return values + [0] * (width - len(values))


def trl(model: Path, groups: list[list[Trajectory]], settings: dict[str, Any]) -> list[Result]:
    """Some steps of TRL in its own process; the first one, which warms up, is left out."""
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.json"
        data = [[vars(trajectory) for trajectory in group] for group in groups]
        task.write_text(json.dumps({"model": str(model), "groups": data, "settings": settings, "output": folder}))
        script = Path(__file__).with_name("trainer_tokens_trl.py")
        quiet = {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "TRL_EXPERIMENTAL_SILENCE": "1",
            "WANDB_MODE": "disabled",
        }
        done = subprocess.run(
            [TRL_PYTHON, script, task], env=os.environ | quiet, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"TRL failed:\n{done.stderr[-3000:]}")
        return [Result(**step) for step in json.loads((Path(folder) / "result.json").read_text())][1:]


def install_trl() -> None:
    """Make TRL's environment if it is not there."""
    if TRL_PYTHON.exists():
        return
    uv = ROOT / ".cache" / "uv" / "bin" / "uv"
    program = str(uv) if uv.exists() else "uv"
    subprocess.run([program, "venv", "--quiet", "--python", sys.executable, TRL_PYTHON.parent.parent], check=True)
    subprocess.run([program, "pip", "install", "--quiet", "--python", TRL_PYTHON, *TRL_PACKAGES], check=True)


def measure(workload: Workload, model: Path, rounds: int) -> dict[str, list[Result]]:
    """Steps of every contender, taken in turns so that they share the machine's good and bad moments."""
    groups = make_groups(workload)
    contenders = {
        "seatrial, 16 bits": ours(model, groups, "bfloat16"),
        "seatrial, 32 bits": ours(model, groups, "float32"),
        "plain loop, 32 bits": plain_loop(model, groups),
    }
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    for round_ in range(rounds + 1):
        for name, step in contenders.items():
            result = step()
            if round_ > 0:  # the first one warms up
                results[name].append(result)
        if round_ > 0:
            for batch_size in workload.trl_batch_sizes:
                best = {"batch_size": batch_size, "bf16": True, "gradient_checkpointing": False}
                name = f"TRL, 16 bits, batch {batch_size}, no checkpointing"
                results.setdefault(name, []).extend(trl(model, groups, best))
            if workload.trl_batch_sizes:
                usual = {"batch_size": 8, "bf16": True, "gradient_checkpointing": True}
                results.setdefault("TRL, defaults (16 bits, batch 8, checkpointing)", []).extend(
                    trl(model, groups, usual)
                )
    return results


def print_table(name: str, num_tokens: int, results: dict[str, list[Result]]) -> None:
    """Tokens per CPU second: best, worst, and as a share of the first contender's."""
    fastest = {contender: num_tokens / min(r.cpu_seconds for r in steps) for contender, steps in results.items()}
    slowest = {contender: num_tokens / max(r.cpu_seconds for r in steps) for contender, steps in results.items()}
    print(f"\n{name}: {num_tokens:,} tokens a step\n")
    print("| trainer | tokens/s, best step | worst step | share of the first | gradient norm |")
    print("|---|---|---|---|---|")
    first = next(iter(fastest.values()))
    for contender, steps in results.items():
        share = fastest[contender] / first
        norm = steps[0].grad_norm
        print(f"| {contender} | {fastest[contender]:,.0f} | {slowest[contender]:,.0f} | {share:.2f} | {norm:.4f} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    install_trl()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        make_model(model)
        for name in arguments.workload or WORKLOADS:
            groups = make_groups(WORKLOADS[name])
            num_tokens = sum(len(t.prompt + t.completion) for group in groups for t in group)
            print_table(name, num_tokens, measure(WORKLOADS[name], model, arguments.rounds))


if __name__ == "__main__":
    main()
