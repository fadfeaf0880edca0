"""From a scheduler's ticket to a trial on a host, and back."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, override

from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.harness import HarnessSpec, Sampling
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.judge.tokens import JudgeAccess
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.trials.request import TrialMode, TrialRequest
from seatrial_rollout.trials.tasks import TaskRef
from seatrial_trainer.driver.inputs import Inputs
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.scheduling.ticket import TrialRunner, TrialTicket


@dataclass(frozen=True, slots=True)
class TrialProfile:
    """How all trials of one purpose are run."""

    harness: HarnessSpec
    sampling: Sampling
    max_steps: int
    context_length: int
    mode: TrialMode = TrialMode.AGENT

    @classmethod
    def training(cls, spec: RLRunSpec) -> "TrialProfile":
        """As the policy is trained."""
        harness = spec.harness
        return cls(harness, harness.sampling, harness.limits.max_steps, spec.model.context_length.train)

    @classmethod
    def evaluation(cls, spec: RLRunSpec, sampling: Sampling, harness_name: str | None = None) -> "TrialProfile":
        """As the policy is measured."""
        harness = spec.harness.model_copy(update={"name": harness_name or spec.harness.name})
        lengths = spec.model.context_length
        return cls(harness, sampling, harness.limits.max_eval_steps, lengths.eval or lengths.train)

    @classmethod
    def solution(cls, spec: RLRunSpec, mode: TrialMode) -> "TrialProfile":
        """Without a policy: the task's own solution, or nobody."""
        return cls(spec.harness, spec.harness.sampling, 1, spec.model.context_length.train, mode)


class RunsTrials(Protocol):
    """The trial hosts."""

    async def run(self, request: TrialRequest) -> Trajectory:
        """Run one trial; its faults are outcomes."""
        ...


class AssignsEngines(Protocol):
    """The router."""

    def assign(self, trial_id: str) -> list[EngineAddress]:
        """Engines for a trial, the preferred one first."""
        ...

    def release(self, trial_id: str) -> None:
        """The trial ended."""
        ...


class OpensJudge(Protocol):
    """The judge's gateway."""

    @property
    def access(self) -> JudgeAccess:
        """What a trial's process needs."""
        ...


@dataclass
class TrialService(TrialRunner):
    """Runs tickets on the trial hosts, each on its engine, and tells telemetry."""

    spec: RLRunSpec
    inputs: Inputs
    hosts: RunsTrials
    router: AssignsEngines
    telemetry: Telemetry
    judge: OpensJudge | None = None
    """None if the run has none."""
    _profiles: dict[str, TrialProfile] = field(default_factory=dict)
    _tasks: dict[tuple[str, str], TaskRef] = field(default_factory=dict)

    def prepare(self, purpose: str, profile: TrialProfile, tasks: Iterable[TaskRef]) -> None:
        """Say how trials of a purpose are run, and on which tasks, before any ticket of it comes."""
        self._profiles[purpose] = profile
        self._tasks |= {(purpose, task.name): task for task in tasks}

    def world_of(self, purpose: str, task: str) -> str:
        """WorldImage that a task is tried in; empty where there is none."""
        return self._tasks[purpose, task].world or self.spec.sandbox.world or ""

    @override
    async def run(self, ticket: TrialTicket) -> Trajectory:
        request = self._request(ticket)
        self.telemetry.trial_started()
        try:
            trajectory = await self.hosts.run(request)
        except BaseException:
            self.telemetry.trial_lost()
            raise
        finally:
            self.router.release(ticket.trial_id)
        self.telemetry.trial_ended(trajectory)
        return trajectory

    def _request(self, ticket: TrialTicket) -> TrialRequest:
        profile = self._profiles[ticket.purpose]
        task = self._tasks[ticket.purpose, ticket.task]
        has_policy = profile.mode is TrialMode.AGENT
        policy = Policy(self.inputs.model_path, profile.context_length, self.spec.model.tool_call_format)
        return TrialRequest(
            trial_id=ticket.trial_id,
            group_id=ticket.group_id,
            purpose=ticket.purpose,
            task=task.name,
            task_path=task.path,
            domain=task.domain,
            start_version=ticket.start_version,
            harness=profile.harness,
            sampling=profile.sampling,
            max_steps=profile.max_steps,
            sandbox=self.spec.sandbox,
            policy=policy if has_policy else None,
            engines=self.router.assign(ticket.trial_id) if has_policy else [],
            mode=profile.mode,
            judge=None if self.judge is None else self.judge.access,
        )
