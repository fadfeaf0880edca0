"""The pieces of the comparison of losses: what its engine says is what the trainer says, and at S = 0 losses agree."""

import asyncio
from pathlib import Path

import pytest
import torch

from bench.lockstep_engine import LockstepEngine
from bench.staleness_losses import LOSSES, Run, Step, read, table, write
from seatrial_api.spec.algorithm import OptimizerSpec
from seatrial_api.spec.backend import TrainerSpec
from seatrial_api.spec.model import ContextLength, ModelSpec, Source
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_trainer.algorithms.losses import policy_loss
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend
from tests.policy_models import write_model

PROMPTS = {"long": [3, 9, 4, 20, 7, 33, 8], "short": [5, 6], "other": [5, 6]}
STOP = 1


def backend_of(model: Path) -> TorchBackend:
    spec = ModelSpec(source=Source(path=str(model)), dtype="float32", context_length=ContextLength(train=128))
    return TorchBackend(PolicySetup(spec, TrainerSpec(), OptimizerSpec()), model)


async def converse(engine: LockstepEngine, num_turns: dict[str, int]) -> dict[str, tuple[list[int], dict[int, float]]]:
    """Each trial's tokens, and the log probabilities of those that it sampled by their place."""
    told: dict[str, tuple[list[int], dict[int, float]]] = {}

    async def trial(trial_id: str) -> None:
        tokens, said = list(PROMPTS[trial_id]), dict[int, float]()
        for turn in range(num_turns[trial_id]):
            request = GenerationRequest(tokens[:], 6 + turn, temperature=1.0, stop_token_ids=[STOP], trial_id=trial_id)
            generation: Generation = await engine.generate(request)
            said |= {len(tokens) + place: logprob for place, logprob in enumerate(generation.logprobs)}
            tokens += [*generation.token_ids, 11, 12 + turn]
        engine.leave()
        told[trial_id] = tokens, said

    async with asyncio.TaskGroup() as group:
        with engine.trials(list(num_turns)):
            for task in [group.create_task(trial(trial_id)) for trial_id in num_turns]:
                await task
    return told


async def test_what_the_engine_says_of_its_tokens_is_what_the_trainer_says(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    told = await converse(LockstepEngine(model, 128, 8), {"long": 3, "short": 1, "other": 2})
    tokens = [tokens for tokens, _ in told.values()]
    for (_, said), trained in zip(told.values(), backend_of(model).logprobs(tokens), strict=True):
        assert said == pytest.approx({place: trained[place] for place in said}, abs=1e-5)


async def test_a_trials_luck_is_its_own(tmp_path: Path) -> None:
    engine = LockstepEngine(write_model(tmp_path), 128, 8)
    together = await converse(engine, {"long": 2, "short": 2, "other": 1})
    alone = await converse(engine, {"short": 2})
    assert together["short"][0] == alone["short"][0]
    assert together["short"][0][:6] != together["other"][0][:6], "the same prompt under another id"


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_losses_have_one_gradient_where_nothing_is_stale(advantage: float) -> None:
    rollout = torch.tensor([-0.1, -2.0, -5.0])
    gradients = []
    for spec in LOSSES.values():
        logprobs = rollout.clone().requires_grad_()
        mask = torch.ones(3, dtype=torch.bool)
        policy_loss(logprobs, rollout, torch.full((3,), advantage), mask, spec).loss.sum().backward()
        gradients.append(logprobs.grad)
    for gradient in gradients:
        torch.testing.assert_close(gradient, torch.full((3,), -advantage))


def test_runs_are_kept_and_compared_seed_by_seed(tmp_path: Path) -> None:
    step = Step(reward=0.5, grad_norm=0.25, entropy=0.1, clipped=0.125, mismatch_kl=0.001)
    solved = {("dppo", 0): 0.5, ("dppo", 1): 0.75, ("tis", 0): 0.25, ("tis", 1): 0.5}
    runs = [Run(loss, 4, seed, [step], {0: 0.25, 1: share}) for (loss, seed), share in solved.items()]
    write(runs, tmp_path)
    assert read(tmp_path) == runs
    assert "| 4 | `tis` | 38 ± 159 % | -25 ± 0 | 12.5% | 0.001 | 0.25 |" in table(read(tmp_path))
