"""What a trial host is asked to do."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from seatrial_api.spec.harness import HarnessSpec, Sampling
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.judge.tokens import JudgeAccess
from seatrial_rollout.tito.policy import Policy


class TrialMode(StrEnum):
    """Who acts in the trial."""

    AGENT = "Agent"
    """The policy, through the harness."""
    ORACLE = "Oracle"
    """The task's own solution, which has to score 1."""
    NO_OP = "NoOp"
    """Nobody, which has to score 0."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """One try at one task; picklable."""

    trial_id: str
    group_id: str
    purpose: str
    """Stage name, or `validation`."""
    task: str
    """Name of the task."""
    task_path: Path
    """The Harbor task directory."""
    domain: str
    start_version: int
    harness: HarnessSpec
    sampling: Sampling
    max_steps: int
    sandbox: SandboxSpec
    policy: Policy | None = None
    """None for the oracle and the no-op."""
    engines: list[EngineAddress] = field(default_factory=list)
    """The assigned engine first, then those to fall back to."""
    mode: TrialMode = TrialMode.AGENT
    judge: JudgeAccess | None = None
    """For the verifier; none if the run has no judge."""
