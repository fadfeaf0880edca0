"""The megatron backend on one and two gloo ranks, beside the torch backend and a plain loop, on the same data.

Every contender lives in processes of its own for the whole run and steps in turns with the others, so that they share
the machine's good and bad moments. CPU seconds are those of all of a contender's ranks. Equal gradient norms mean that
they computed the same thing.

    steps        tokens a CPU second, and padding as a share of what was computed
    memory       what one sequence of some length costs at its peak, per token of it, on the fullest rank
    weights      seconds per GB: export, checkpoint saved, loaded, and loaded into another layout

On a CPU megatron-core has neither Transformer Engine nor fused kernels: these figures say what the layouts cost, not
how fast they are on GPUs.

    python -m bench.megatron_backend [--rounds N] [--part steps] [--part memory] [--part weights]
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from bench.trainer_tokens import WORKLOADS, make_groups, make_model, plain_loop, sequences_of
from seatrial_api.spec.algorithm import LossSpec, OptimizerSpec
from seatrial_api.spec.backend import TrainerSpec
from seatrial_api.spec.model import ContextLength, ModelSpec, Source
from seatrial_trainer.policy.backends import start_backend
from seatrial_trainer.policy.batch import Minibatch, TrainingSequence
from seatrial_trainer.policy.protocol import PolicyBackend
from seatrial_trainer.policy.ranks import Ranks, connect_store, open_store
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend

PATIENCE_SECONDS = 1800.0
LAYOUTS: dict[str, dict[str, Any]] = {
    "torch": {"backend": "torch"},
    "megatron, 1 rank": {"backend": "megatron"},
    "megatron, data 2": {"backend": "megatron", "ranks": 2},
    "megatron, tensor 2": {"backend": "megatron", "ranks": 2, "parallelism": {"tensor": 2}},
    "megatron, pipeline 2": {"backend": "megatron", "ranks": 2, "parallelism": {"pipeline": 2}},
    "megatron, context 2": {"backend": "megatron", "ranks": 2, "parallelism": {"context": 2}},
}
MEMORY_LAYOUTS = ("torch", "megatron, 1 rank", "megatron, tensor 2", "megatron, context 2")
MEMORY_LENGTHS = (1024, 2048, 4096, 8192)
RESHARDS = {"megatron, 1 rank": "megatron, tensor 2", "megatron, pipeline 2": "megatron, tensor 2"}
"""Layouts that load a checkpoint of another one, and whose."""
LARGE = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "vocab_size": 32_000}
"""Some 50 million parameters: weights and checkpoints whose bytes outweigh what it takes to begin."""
GB = 1e9


@dataclass(frozen=True)
class Measured:
    """What one rank says of one call."""

    wall_seconds: float
    cpu_seconds: float
    value: Any = None


class Rank:
    """One rank's end: calls that its process answers, one after another."""

    def __init__(self, backend: PolicyBackend) -> None:
        self._backend = backend

    def step(self, minibatch: Minibatch) -> tuple[float, float]:
        """One optimiser step; gradient norm and padding."""
        stats = self._backend.forward_backward(minibatch)
        return self._backend.optim_step(1e-9).grad_norm, stats.packing_waste

    def peak(self, minibatch: Minibatch) -> int:
        """Bytes by which the process grew at most during a step."""
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        self._backend.forward_backward(minibatch)
        return _memory("VmHWM") - before

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        self._backend.save(folder)

    def load(self, folder: Path) -> None:
        """Read one."""
        self._backend.load(folder)

    def export(self, folder: Path) -> int:
        """Write a model directory; bytes of its weights, on the first rank."""
        return self._backend.export(folder)


class Contender:
    """The driver's end of all ranks of one layout."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    def call(self, method: str, *args: Any) -> list[Measured]:
        """Let every rank do it; what each says."""
        for connection in self._connections:
            connection.send((method, args))
        answers = [connection.recv() for connection in self._connections]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


@contextmanager
def running(layout: dict[str, Any], model: Path) -> Iterator[Contender]:
    """A contender's processes."""
    context = multiprocessing.get_context("spawn")
    trainer = TrainerSpec(**layout)
    store = open_store("127.0.0.1", timeout_seconds=PATIENCE_SECONDS)
    ours, theirs = zip(*(context.Pipe() for _ in range(trainer.ranks)), strict=True)
    processes = [
        context.Process(target=serve, args=(rank, trainer, model, store.port, end)) for rank, end in enumerate(theirs)
    ]
    for process in processes:
        process.start()
    try:
        contender = Contender(list(ours))
        contender.call("started")
        yield contender
    finally:
        for process in processes:
            process.kill()
            process.join()


def serve(rank: int, trainer: TrainerSpec, model: Path, port: int, driver: Connection) -> None:
    """A rank's process: do what the driver asks for until it ends."""
    torch.set_num_threads(1)
    ranks = Ranks()
    if trainer.ranks > 1:
        store = connect_store("127.0.0.1", port, timeout_seconds=PATIENCE_SECONDS)
        ranks = Ranks.join(rank, trainer.ranks, store, timeout_seconds=PATIENCE_SECONDS)
    served = Rank(start_backend(setup_of(trainer), model, ranks))
    while True:
        method, args = driver.recv()
        wall, cpu = time.monotonic(), _cpu_seconds()
        try:
            value = None if method == "started" else getattr(served, method)(*args)
        except Exception as error:  # noqa: BLE001  the driver raises it
            driver.send(error)
            continue
        driver.send(Measured(time.monotonic() - wall, _cpu_seconds() - cpu, value))


def setup_of(trainer: TrainerSpec) -> PolicySetup:
    """The same for every contender but for the layout."""
    model = ModelSpec(source=Source(path="model"), dtype="float32", context_length=ContextLength(train=16_384))
    return PolicySetup(model, trainer.model_copy(update={"max_tokens_per_microbatch": 16_384}), OptimizerSpec())


def measure_steps(model: Path, rounds: int) -> None:
    """Tokens a CPU second of every contender, on short and on long sequences."""
    for name in ("short", "long"):
        groups = make_groups(WORKLOADS[name])
        num_tokens = sum(len(one.prompt + one.completion) for group in groups for one in group)
        trajectories = sequences_of(groups, TorchBackend(setup_of(TrainerSpec()), model))
        minibatch = Minibatch(trajectories, LossSpec(name="ppo-clip", low=0.2, high=0.2))
        by_hand = plain_loop(model, groups)
        with ExitStack() as stack:
            contenders = {one: stack.enter_context(running(layout, model)) for one, layout in LAYOUTS.items()}
            for ranks in contenders.values():
                ranks.call("step", one_sequence(64))  # it warms up
            steps: dict[str, list[tuple[float, float, float, float]]] = {}
            for _ in range(rounds):
                for contender, ranks in contenders.items():
                    answers = ranks.call("step", minibatch)
                    norm, waste = answers[0].value
                    cpu, wall = sum(a.cpu_seconds for a in answers), max(a.wall_seconds for a in answers)
                    steps.setdefault(contender, []).append((cpu, wall, norm, waste))
                wall = time.monotonic()
                step = by_hand()
                steps.setdefault("plain loop", []).append(
                    (step.cpu_seconds, time.monotonic() - wall, step.grad_norm, 0.0)
                )
        print(f"\n{name}: {num_tokens:,} tokens a step, 32 bits\n")
        print("| contender | tokens a CPU second | wall seconds | share of torch | gradient norm | padding |")
        print("|---|---|---|---|---|---|")
        first = min(cpu for cpu, *_ in steps["torch"])
        for contender, taken in steps.items():
            cpu, wall, norm, waste = min(taken)
            shown = "" if contender == "plain loop" else f"{waste:.2%}"
            print(f"| {contender} | {num_tokens / cpu:,.0f} | {wall:.2f} | {first / cpu:.2f} | {norm:.4f} | {shown} |")


def measure_memory(model: Path) -> None:
    """Bytes per token of one sequence, by its length."""
    print("\nmemory of one sequence at its peak, KB per token, on the fullest rank\n")
    print("| contender | " + " | ".join(f"{length:,} tokens" for length in MEMORY_LENGTHS) + " |")
    print("|---|" + "---|" * len(MEMORY_LENGTHS))
    for name in MEMORY_LAYOUTS:
        with running(LAYOUTS[name], model) as contender:
            contender.call("peak", one_sequence(64))
            cells = []
            for length in MEMORY_LENGTHS:
                peak = max(answer.value for answer in contender.call("peak", one_sequence(length)))
                cells.append(f"{peak / length / 1e3:,.1f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


def one_sequence(length: int) -> Minibatch:
    """A sequence of so many tokens, half of them sampled."""
    ids = [3 + i % 600 for i in range(length + 1)]
    mask = [int(i > length // 2) for i in range(length + 1)]
    sequence = TrainingSequence(ids, mask, [-6.0 * m for m in mask], advantage=1.0, weight=1 / length)
    return Minibatch([sequence], LossSpec(name="ppo-clip", low=0.2, high=0.2))


def measure_weights(model: Path, folder: Path) -> None:
    """Seconds per GB written and read."""
    print("\nseconds per GB; a checkpoint holds weights, masters and both moments\n")
    print("| contender | export | GB | checkpoint saved | loaded | GB | loaded from another layout |")
    print("|---|---|---|---|---|---|---|")
    for name in sorted(LAYOUTS, key=lambda name: name in RESHARDS):  # after those that they read from
        with running(LAYOUTS[name], model) as contender:
            contender.call("step", one_sequence(64))  # so that the optimiser has a state
            exported = contender.call("export", folder / "model")
            saved = folder / name
            saved.mkdir()
            stored, loaded = contender.call("save", saved), contender.call("load", saved)
            source = RESHARDS.get(name)
            moved = contender.call("load", folder / source) if source else None
        weights = exported[0].value / GB
        size = sum(file.stat().st_size for file in saved.rglob("*") if file.is_file()) / GB
        resharded = f"{_longest(moved) / size:.1f}, from {source}" if moved else ""
        print(
            f"| {name} | {_longest(exported) / weights:.1f} | {weights:.2f} | {_longest(stored) / size:.1f} "
            f"| {_longest(loaded) / size:.1f} | {size:.2f} | {resharded} |"
        )


def make_large_model(directory: Path) -> None:
    """The bench's model, larger."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  heavy

    config = AutoConfig.from_pretrained(directory)
    for name, value in LARGE.items():
        setattr(config, name, value)
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 8, 4, 64
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


def _longest(answers: list[Measured]) -> float:
    return max(answer.wall_seconds for answer in answers)


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _memory(field: str) -> int:
    """Bytes, from the kernel's account of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--part", choices=["steps", "memory", "weights"], action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, large = folder / "small", folder / "large"
        make_model(small)
        make_model(large)
        make_large_model(large)
        parts: dict[str, Callable[[], None]] = {
            "steps": lambda: measure_steps(small, arguments.rounds),
            "memory": lambda: measure_memory(small),
            "weights": lambda: measure_weights(large, folder),
        }
        for part in arguments.part or parts:
            parts[part]()


if __name__ == "__main__":
    main()
