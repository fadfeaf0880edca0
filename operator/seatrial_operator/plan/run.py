"""The plan for an RLRun: what was seen and what time it is in, actions and status out.

A run is always in one of two states, told by `status.current`:

    between attempts ──(nodes of former attempts are gone, no reason to wait)──▶ an attempt holds nodes
           ▲                                                                            │
           └──(its driver ended, or it was lost, or it was released on request)─────────┘

Whatever the operator has to remember is in the status, so a plan that was cut off after any of its actions is made
again from what is there, and comes to the same end. `between.py` has the first state, `attempt.py` the second.
"""

from seatrial_api.conditions import RunCondition, RunPhase
from seatrial_api.status import RLRunStatus
from seatrial_api.warm_sandboxes import sandbox_pools
from seatrial_operator.plan.actions import ApplyPool, CreateJob, DeleteAttempt, DeleteRun, Plan
from seatrial_operator.plan.attempt import watch
from seatrial_operator.plan.between import go_on
from seatrial_operator.plan.draft import Draft, find, is_true
from seatrial_operator.plan.observed import Situation

_STRUCTURAL = (CreateJob, DeleteAttempt, DeleteRun)
_MISSING_LOOK_SECONDS = 15.0


def plan(situation: Situation) -> Plan:
    """What to do about a run now."""
    draft = Draft(situation, situation.run.status)
    if situation.run.is_deleting:
        return Plan((), draft.status, (), situation.timing.resync_seconds, needs_live_look=False)
    _accept(draft)
    if draft.status.current is not None:
        watch(draft)
    if draft.status.current is None:
        go_on(draft)
    _close(draft)
    changes_state = (draft.status.current is None) != (situation.run.status.current is None)
    return Plan(
        actions=tuple(draft.actions),
        status=draft.status,
        removals=tuple(draft.removals),
        next_look_seconds=draft.next_look_seconds,
        needs_live_look=changes_state
        or any(isinstance(action, _STRUCTURAL) for action in (*draft.actions, *draft.removals)),
    )


def _accept(draft: Draft) -> None:
    """Tell whether the spec can be run; what keeps it from that, and the way out."""
    situation = draft.situation
    if situation.problems:
        draft.state(RunCondition.ACCEPTED, "False", "InvalidSpec", "; ".join(situation.problems))
    elif situation.seen.missing:
        missing = "; ".join(situation.seen.missing)
        draft.state(RunCondition.ACCEPTED, "False", "MissingReference", missing)
        draft.look_after(_MISSING_LOOK_SECONDS)
    else:
        draft.state(RunCondition.ACCEPTED, "True", "SpecValid", "the spec can be run, and all that it names is there")
    if not draft.status.sandbox and situation.run.spec.sandbox.provider == "local":
        draft.update(sandbox="local, not isolated")


def _close(draft: Draft) -> None:
    """What follows from all the rest: the phase, the generation, and the pool of a changed spec."""
    run, current = draft.situation.run, draft.status.current
    is_new = run.status.observed_generation != run.generation
    if is_new and current is not None and not any(isinstance(a, ApplyPool) for a in draft.actions):
        draft.actions.append(ApplyPool())
    if current is None and run.status.current is not None and sandbox_pools(run.spec):
        draft.actions.append(ApplyPool(keeps_sandboxes=False))
    draft.update(observed_generation=run.generation, phase=_phase(draft.status))


def _phase(status: RLRunStatus) -> RunPhase:
    ends = {
        RunCondition.COMPLETE: RunPhase.SUCCEEDED,
        RunCondition.FAILED: RunPhase.FAILED,
        RunCondition.GUARDED: RunPhase.GUARDED,
        RunCondition.SUSPENDED: RunPhase.SUSPENDED,
        RunCondition.SCHEDULED: RunPhase.RUNNING,
    }
    true = next((phase for kind, phase in ends.items() if is_true(status, kind)), None)
    if true is not None:
        return true
    return RunPhase.QUEUED if find(status, RunCondition.SCHEDULED) else RunPhase.PENDING
