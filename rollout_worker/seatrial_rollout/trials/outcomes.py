"""How a trial ended, told from what was seen: pure functions, no I/O, no heavy import."""

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.trials.request import TrialMode, TrialRequest

_BY_ERROR_NAME: Mapping[str, Outcome] = {
    "InvalidInputError": Outcome.HARNESS_FAILED,
    "SandboxError": Outcome.SANDBOX_FAILED,
    "EngineError": Outcome.ENGINE_FAILED,
    "VerifierError": Outcome.VERIFIER_FAILED,
    # Harbor's own:
    "EnvironmentStartTimeoutError": Outcome.SANDBOX_FAILED,
    "SandboxBuildFailedError": Outcome.SANDBOX_FAILED,
    "HealthcheckError": Outcome.SANDBOX_FAILED,
    "AddTestsDirError": Outcome.SANDBOX_FAILED,
    "DownloadVerifierDirError": Outcome.SANDBOX_FAILED,
    "AgentSetupTimeoutError": Outcome.TOOL_SERVER_FAILED,
    "AgentTimeoutError": Outcome.TIME_EXHAUSTED,
    "VerifierTimeoutError": Outcome.VERIFIER_FAILED,
}
"""By the name of the error's class or of one of its bases: most of them live in packages that are slow to import.
An error that has an `outcome` of its own, as those of the harness do, needs no entry."""


class Phase(StrEnum):
    """How far a trial came."""

    SANDBOX = "sandbox"
    """Building the sandbox and connecting its tools."""
    AGENT = "agent"
    """The agent's work."""
    VERIFY = "verify"
    """The verifier's work."""


_BY_PHASE: Mapping[Phase, Outcome] = {
    Phase.SANDBOX: Outcome.SANDBOX_FAILED,
    Phase.AGENT: Outcome.HARNESS_FAILED,
    Phase.VERIFY: Outcome.VERIFIER_FAILED,
}
"""Who is to blame for an error without known cause."""


class Interruption(StrEnum):
    """Who ended a trial from outside."""

    CANCELLED = "Cancelled"
    """The run stopped."""
    DEADLINE = "Deadline"
    """The wall deadline passed."""


_BY_INTERRUPTION: Mapping[Interruption, tuple[Outcome, str]] = {
    Interruption.CANCELLED: (Outcome.CANCELLED, "the run stopped"),
    Interruption.DEADLINE: (Outcome.DEADLINE_EXCEEDED, "the wall deadline passed"),
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that decides a trial's outcome."""

    phase: Phase
    """The last phase that began."""
    agent_outcome: Outcome | None = None
    """How the harness says that the agent ended; none if it does not tell."""
    agent_detail: str = ""
    """The harness's words for it."""
    error: BaseException | None = None
    """What broke the trial off."""
    interruption: Interruption | None = None
    """Who ended it from outside."""
    scores: Mapping[str, float] | None = None
    """The verifier's figures."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the trial ended and what it is worth."""

    outcome: Outcome
    detail: str
    scores: dict[str, float] = field(default_factory=dict)
    """Empty for an infrastructure outcome: what was measured on broken ground is not a measurement."""

    @property
    def reward(self) -> float | None:
        """The reward; none for an infrastructure outcome."""
        return self.scores.get("reward")


def judge(evidence: Evidence) -> Verdict:
    """Decide a trial's outcome.

    In this order: who ended it from outside; the root cause of the error that broke it off; what the harness blames
    on the infrastructure; an error without known cause; and only then how the agent ended, with the verifier's figures.
    """
    if evidence.interruption is not None:
        outcome, what = _BY_INTERRUPTION[evidence.interruption]
        return Verdict(outcome, f"{what} in the trial's {evidence.phase} phase")
    error, agent_outcome = evidence.error, evidence.agent_outcome
    blame = None if error is None else root_cause(error)
    if error is not None and (blame is None or blame.is_infrastructure):
        return Verdict(blame or _BY_PHASE[evidence.phase], describe(error))
    if agent_outcome is not None and agent_outcome.is_infrastructure and blame is None:
        return Verdict(agent_outcome, evidence.agent_detail)
    if evidence.scores is None or "reward" not in evidence.scores:
        return Verdict(Outcome.VERIFIER_FAILED, "the verifier was not run or left no reward")
    detail = evidence.agent_detail or describe(error)
    return Verdict(blame or agent_outcome or Outcome.COMPLETED, detail, dict(evidence.scores))


def identity(request: TrialRequest) -> dict[str, Any]:
    """The part of a trajectory that is known before the trial begins."""
    return {
        "trial_id": request.trial_id,
        "group_id": request.group_id,
        "task": request.task,
        "domain": request.domain,
        "purpose": request.purpose,
        "harness": request.harness.name if request.mode is TrialMode.AGENT else request.mode.value,
        "start_version": request.start_version,
    }


def unfinished(request: TrialRequest, outcome: Outcome, detail: str) -> Trajectory:
    """The trajectory of a trial of which nothing is left but how it ended."""
    return Trajectory(**identity(request), outcome=outcome, detail=detail, reward=None)


def describe(error: BaseException | None) -> str:
    """An error for a person: ours by their sentence, all others with their traceback."""
    if error is None:
        return ""
    if root_cause(error) is not None:
        causes = [f"{type(cause).__name__}: {cause}" for cause in _causes(error) if str(cause)]
        return "; caused by ".join(causes)
    return "".join(traceback.format_exception(error)).strip()


def root_cause(error: BaseException) -> Outcome | None:
    """The outcome that an error says it stands for, else that of its innermost known cause; none if none is known."""
    causes = list(_causes(error))
    said = [own for cause in causes if isinstance(own := getattr(cause, "outcome", None), Outcome)]
    names = [base.__name__ for cause in reversed(causes) for base in type(cause).__mro__]
    known = [_BY_ERROR_NAME[name] for name in names if name in _BY_ERROR_NAME]
    return next(iter([*said, *known]), None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, innermost last; of a group, its first member."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
