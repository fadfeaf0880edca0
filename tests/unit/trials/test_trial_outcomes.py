"""Who is to blame for how a trial ended."""

from pathlib import Path

import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_api.outcome import Outcome
from seatrial_api.spec.harness import HarnessSpec, Sampling
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.engine.errors import EngineError
from seatrial_rollout.harness.errors import SandboxFailedError, ToolServerError
from seatrial_rollout.trials.outcomes import Evidence, Interruption, Phase, judge, unfinished
from seatrial_rollout.trials.request import TrialMode, TrialRequest
from seatrial_rollout.trials.rewards import VerifierError

SCORES = {"reward": 1.0, "files": 3.0}


class VerifierTimeoutError(TimeoutError):
    """Stands for Harbor's class of the same name, which is told by its name."""


class AgentTimeoutError(TimeoutError):
    """Stands for Harbor's class of the same name."""


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if not outcome.is_infrastructure])
def test_a_model_outcome_is_graded(outcome: Outcome) -> None:
    verdict = judge(Evidence(Phase.VERIFY, agent_outcome=outcome, agent_detail="why", scores=SCORES))
    assert (verdict.outcome, verdict.detail, verdict.reward, verdict.scores) == (outcome, "why", 1.0, SCORES)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome.is_infrastructure])
def test_an_infrastructure_outcome_carries_no_reward_even_if_the_verifier_gave_one(outcome: Outcome) -> None:
    verdict = judge(Evidence(Phase.VERIFY, agent_outcome=outcome, agent_detail="why", scores=SCORES))
    assert (verdict.outcome, verdict.detail, verdict.reward, verdict.scores) == (outcome, "why", None, {})


def test_a_harness_that_keeps_no_record_completed_its_work() -> None:
    assert judge(Evidence(Phase.VERIFY, scores=SCORES)).outcome is Outcome.COMPLETED


def test_no_verdict_at_all_is_a_failed_verifier() -> None:
    verdict = judge(Evidence(Phase.AGENT, agent_outcome=Outcome.COMPLETED))
    assert (verdict.outcome, verdict.reward) == (Outcome.VERIFIER_FAILED, None)


@pytest.mark.parametrize(
    ("error", "phase", "outcome"),
    [
        (ToolServerError(server="sheets", problem="hangs"), Phase.AGENT, Outcome.TOOL_SERVER_FAILED),
        (SandboxFailedError("gone"), Phase.AGENT, Outcome.SANDBOX_FAILED),
        (EngineError("all engines refuse"), Phase.AGENT, Outcome.ENGINE_FAILED),
        (VerifierError("reward is nan"), Phase.VERIFY, Outcome.VERIFIER_FAILED),
        (VerifierTimeoutError("600 s"), Phase.VERIFY, Outcome.VERIFIER_FAILED),
        (OSError(28, "No space left on device"), Phase.SANDBOX, Outcome.SANDBOX_FAILED),
        (KeyError("x"), Phase.AGENT, Outcome.HARNESS_FAILED),
        (KeyError("x"), Phase.VERIFY, Outcome.VERIFIER_FAILED),
        (ExceptionGroup("two tasks", [EngineError("gone"), KeyError("x")]), Phase.AGENT, Outcome.ENGINE_FAILED),
    ],
)
def test_an_error_is_blamed_on_its_cause_or_else_on_the_phase(error: Exception, phase: Phase, outcome: Outcome) -> None:
    verdict = judge(Evidence(phase, error=error, scores=SCORES))
    assert (verdict.outcome, verdict.reward) == (outcome, None)
    assert verdict.detail


def test_the_cause_of_an_error_counts_more_than_its_wrapping() -> None:
    error = RuntimeError("agent failed")
    error.__cause__ = EngineError("connection refused")
    verdict = judge(Evidence(Phase.AGENT, error=error))
    assert verdict.outcome is Outcome.ENGINE_FAILED
    assert "connection refused" in verdict.detail


def test_a_bug_shows_its_traceback_and_a_named_error_its_sentence() -> None:
    try:
        {}["missing"]
    except KeyError as exc:
        bug = judge(Evidence(Phase.AGENT, error=exc))
    named = judge(Evidence(Phase.AGENT, error=InvalidInputError("the tokenizer has no chat template")))
    assert "Traceback" in bug.detail
    assert "test_trial_outcomes.py" in bug.detail
    assert named.detail == "InvalidInputError: the tokenizer has no chat template"


def test_an_agent_that_ran_out_of_time_is_graded() -> None:
    verdict = judge(Evidence(Phase.VERIFY, error=AgentTimeoutError("3600 s"), scores=SCORES))
    assert (verdict.outcome, verdict.reward) == (Outcome.TIME_EXHAUSTED, 1.0)


def test_a_broken_sandbox_in_the_verify_phase_beats_the_agents_own_outcome() -> None:
    error = SandboxFailedError("gone")
    verdict = judge(Evidence(Phase.VERIFY, agent_outcome=Outcome.COMPLETED, error=error))
    assert verdict.outcome is Outcome.SANDBOX_FAILED


@pytest.mark.parametrize(
    ("interruption", "outcome"),
    [(Interruption.CANCELLED, Outcome.CANCELLED), (Interruption.DEADLINE, Outcome.DEADLINE_EXCEEDED)],
)
def test_an_interruption_from_outside_is_the_outcome_and_names_the_phase(
    interruption: Interruption, outcome: Outcome
) -> None:
    evidence = Evidence(Phase.AGENT, agent_outcome=Outcome.CANCELLED, interruption=interruption, scores=SCORES)
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.reward) == (outcome, None)
    assert "agent phase" in verdict.detail


def test_a_harness_cut_off_by_an_error_is_blamed_on_the_error() -> None:
    evidence = Evidence(Phase.AGENT, agent_outcome=Outcome.CANCELLED, error=SandboxFailedError("gone"))
    assert judge(evidence).outcome is Outcome.SANDBOX_FAILED


def test_an_unfinished_trial_keeps_its_identity_and_has_no_reward() -> None:
    request = TrialRequest(
        trial_id="t",
        group_id="g",
        purpose="Train",
        task="task",
        task_path=Path("task"),
        domain="office",
        start_version=3,
        harness=HarnessSpec(),
        sampling=Sampling(),
        max_steps=10,
        sandbox=SandboxSpec(provider="local"),
        mode=TrialMode.ORACLE,
    )
    trajectory = unfinished(request, Outcome.HARNESS_FAILED, "killed")
    assert (trajectory.trial_id, trajectory.group_id, trajectory.start_version) == ("t", "g", 3)
    assert (trajectory.harness, trajectory.outcome, trajectory.reward) == ("Oracle", Outcome.HARNESS_FAILED, None)
