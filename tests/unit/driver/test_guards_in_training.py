"""Every guard over the whole way from trials and ranks to its bound, in runs that fall ill after a few steps."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, override

import pytest

from seatrial_api.finding import Finding, FindingKind
from seatrial_api.outcome import Outcome
from seatrial_api.spec.stages import TrainStage
from seatrial_api.stage_report import StageReport, StageResult
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.driver.driver import most_telling
from seatrial_trainer.driver.stages.train import train
from seatrial_trainer.driver.training import GuardedError
from seatrial_trainer.policy.batch import Minibatch, OptimStats, StepStats
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.storage.run_storage import RunStorage
from tests.clocks import HeldClock
from tests.training_doubles import NotedCluster, NotedPolicy, completes, make_context, make_run
from tests.trajectories import make_sequence

STEPS, ILL = 12, 4
"""Steps of a run, and the first version whose trials and steps go wrong."""
EVERY_GUARD = {
    "maxLogprobDiff": 0.1,
    "maxMismatchKl": 0.1,
    "maxEntropy": 2.0,
    "minEntropy": 0.5,
    "maxErrorRate": 0.3,
    "maxLengthSkew": 2.0,
    "maxRewardJump": 4.0,
    "maxRewardHacking": 0.2,
    "windowSteps": 2,
}

type Trial = Callable[[TrialTicket, Trajectory], Trajectory]


def as_it_was(_ticket: TrialTicket, tried: Trajectory) -> Trajectory:
    """A sound trial."""
    return tried


@dataclass
class FallingIll(NotedCluster):
    """Half of the trials and all of validation are solved, until something goes wrong."""

    trial: Trial = as_it_was
    """What becomes of a trial under weights that are ill."""
    step: dict[str, Any] = field(default_factory=dict)
    """What the ranks measure then."""
    is_skipped: bool = False
    """Whether a gradient is not finite then."""

    @override
    async def policy(self, *, fresh: bool = False) -> NotedPolicy:
        if fresh:
            self.policy_now = IllPolicy(self.step, is_skipped=self.is_skipped)
        return self.policy_now

    @override
    async def run(self, ticket: TrialTicket) -> Trajectory:
        tried = await super().run(ticket)
        if ticket.purpose == "validation":
            tried = tried.model_copy(update={"reward": 1.0})
        return self.trial(ticket, tried) if ticket.start_version >= ILL else tried

    @override
    @asynccontextmanager
    async def dispatching(self, algorithmic_ceiling: int) -> AsyncIterator[TrialDispatcher]:
        """Retries wait on a clock that nobody has to wait for."""
        async with TrialDispatcher(
            self, limit=algorithmic_ceiling, trial_timeout_seconds=20, clock=HeldClock()
        ) as dispatcher:
            yield dispatcher


class IllPolicy(NotedPolicy):
    """Measures what it is told to, from a version on."""

    def __init__(self, measured: dict[str, Any], *, is_skipped: bool) -> None:
        super().__init__()
        self._measured = measured
        self._is_skipped = is_skipped

    @override
    async def train_minibatch(self, minibatch: Minibatch, learning_rate: float) -> tuple[StepStats, OptimStats]:
        stats, optim = await super().train_minibatch(minibatch, learning_rate)
        if (minibatch.fresh_version or 0) < ILL:
            return stats, optim
        return replace(stats, **self._measured), replace(optim, skipped=self._is_skipped)


def finds_a_way_around(ticket: TrialTicket, tried: Trajectory) -> Trajectory:
    """Of every eight trials seven are solved, and nothing of validation is any more."""
    return tried.model_copy(update={"reward": float(ticket.slot > 0)})


def tampers(ticket: TrialTicket, tried: Trajectory) -> Trajectory:
    """Seven are solved as well, and wrote what was the verifier's."""
    found = [Finding(kind=FindingKind.TAMPERING, detail="wrote to the tests")]
    is_honest = ticket.purpose == "validation" or ticket.slot == 0
    return tried if is_honest else tried.model_copy(update={"reward": 1.0, "findings": found})


def fails_at_first(ticket: TrialTicket, tried: Trajectory) -> Trajectory:
    """Infrastructure ends the first attempt of each trial."""
    return broken(tried) if ticket.attempt == 1 else tried


def long_ones_fail(ticket: TrialTicket, tried: Trajectory) -> Trajectory:
    """Of every eight trials one is long, and its first attempt fails."""
    return broken(tried, num_tokens=500) if ticket.slot == 0 and ticket.attempt == 1 else tried


def broken(tried: Trajectory, num_tokens: int = 4) -> Trajectory:
    sequences = [make_sequence([1], list(range(num_tokens)))]
    return tried.model_copy(update={"outcome": Outcome.SANDBOX_FAILED, "reward": None, "sequences": sequences})


async def attempt(storage: RunStorage, cluster: NotedCluster, guards: dict[str, Any]) -> StageReport:
    stage = {"steps": STEPS, "validateEverySteps": 3}
    run = make_run(spec__stages__3__train=stage, spec__guards=guards, spec__algorithm__groupSize=8)
    context = make_context(run, "train", storage, cluster)
    training = context.stage.train
    assert isinstance(training, TrainStage)
    try:
        async with asyncio.timeout(60):
            return await train(context, training)
    except Exception as error:  # noqa: BLE001  what a driver does with it
        raise most_telling(error) from None


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return RunStorage(tmp_path)


async def test_a_sound_run_passes_under_all_guards(storage: RunStorage) -> None:
    report = await attempt(storage, FallingIll(completes), EVERY_GUARD)
    assert report.result is StageResult.PASSED


@pytest.mark.parametrize(
    ("guard", "illness"),
    [
        ("notFinite", {"step": {"loss": math.nan}}),
        ("notFinite", {"is_skipped": True}),
        ("maxLogprobDiff", {"step": {"fresh_logprob_abs_diff_sum": 1e4}}),
        ("maxMismatchKl", {"step": {"mismatch_kl": 0.2}}),
        ("maxEntropy", {"step": {"entropy": 3.0}}),
        ("minEntropy", {"step": {"entropy": 0.1}}),
        ("maxErrorRate", {"trial": fails_at_first}),
        ("maxLengthSkew", {"trial": long_ones_fail}),
        ("maxRewardJump", {"trial": finds_a_way_around}),
        ("maxRewardHacking", {"trial": finds_a_way_around}),
        ("maxRewardHacking", {"trial": tampers}),
    ],
)
async def test_a_run_that_falls_ill_is_ended_by_the_guard_that_is_there_for_it(
    storage: RunStorage, guard: str, illness: dict[str, Any]
) -> None:
    only_this = {name: bound if name in {guard, "windowSteps"} else None for name, bound in EVERY_GUARD.items()}
    with pytest.raises(GuardedError) as caught:
        await attempt(storage, FallingIll(completes, **illness), only_this)
    assert caught.value.fired.guard == guard
    steps = storage.stage("train").read_steps()
    assert ILL < steps[-1]["version"] < STEPS
