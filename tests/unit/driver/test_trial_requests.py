"""What a trial host is asked for on behalf of a ticket."""

from dataclasses import dataclass, field

import pytest

from seatrial_api.spec.judge import JudgeBudget
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.judge.tokens import JudgeAccess, SigningKey
from seatrial_rollout.trials.outcomes import Outcome, unfinished
from seatrial_rollout.trials.request import TrialMode, TrialRequest
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.driver.trials import TrialProfile, TrialService
from seatrial_trainer.observability.metrics import RunMetrics
from seatrial_trainer.scheduling.ticket import TrialTicket
from tests.training_doubles import make_inputs, make_run


@dataclass
class NotedHosts:
    """Hosts that note what they are asked for."""

    requests: list[TrialRequest] = field(default_factory=list)

    async def run(self, request: TrialRequest) -> Trajectory:
        """Note it."""
        self.requests.append(request)
        return unfinished(request, Outcome.CANCELLED, "nothing runs here")


class NoEngines:
    """A router over nothing."""

    def assign(self, trial_id: str) -> list[EngineAddress]:  # noqa: ARG002  there is none for anybody
        """None."""
        return []

    def release(self, trial_id: str) -> None:
        """Nothing."""


@dataclass(frozen=True)
class OpenJudge:
    """A judge that listens."""

    access: JudgeAccess


@pytest.mark.parametrize("is_judged", [True, False])
async def test_every_trial_of_a_run_with_a_judge_can_reach_it(*, is_judged: bool) -> None:
    run, hosts = make_run(), NotedHosts()
    telemetry = Telemetry("run", run.spec.stages, RunMetrics("default", "run"))
    judge = OpenJudge(JudgeAccess("run", "http://x", SigningKey("pem"), "judge", 1, JudgeBudget()))
    inputs = make_inputs()
    service = TrialService(run.spec, inputs, hosts, NoEngines(), telemetry, judge if is_judged else None)
    service.prepare("train", TrialProfile.training(run.spec), inputs.train)
    service.prepare("preflight", TrialProfile.solution(run.spec, TrialMode.ORACLE), inputs.train)
    for purpose in ("train", "preflight"):
        await service.run(TrialTicket("g-1", 0, inputs.train[0].name, "finance", purpose, 0))
    assert [request.judge for request in hosts.requests] == [judge.access if is_judged else None] * 2
    assert "pem" not in repr(hosts.requests)
