"""What the operator says of the sandboxes that the broker counts."""

from datetime import UTC, datetime
from typing import Any

import pytest

from seatrial_api.rollout_pool import RolloutPool, RolloutPoolStatus, SandboxCounts
from seatrial_operator.plan.pools import owned_status

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def said(*counts: SandboxCounts, **spec: Any) -> str:
    """The condition of a run's pool with these counts."""
    sandboxes = [{"world": "acme", "warmMin": 4, **spec}]
    manifest = {
        "apiVersion": "seatrial.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": "office"},
        "spec": {"run": "office", "sandboxes": sandboxes},
    }
    pool = RolloutPool.model_validate(manifest).model_copy(update={"status": RolloutPoolStatus(sandboxes=[*counts])})
    status = owned_status(pool, 1, None, NOW)
    assert status.sandboxes == [*counts]
    (one,) = [one for one in status.conditions if one.type == "SandboxesReady"]
    return f"{one.status} {one.reason}"


@pytest.mark.parametrize(
    ("counts", "condition"),
    [
        ([], "Unknown NotCounted"),
        ([SandboxCounts(world="acme", warm=3)], "False Filling"),
        ([SandboxCounts(world="acme", warm=3, claimed=1)], "True Warm"),
        ([SandboxCounts(world="acme", warm=1, problem="ImagePull: no such image")], "False PullFailed"),
        ([SandboxCounts(world="acme", warm=1, problem="Quota: exceeded")], "False QuotaExceeded"),
        ([SandboxCounts(world="acme", problem="World: not resolved")], "False WorldNotReady"),
        ([SandboxCounts(world="acme", problem="Unschedulable: no room")], "False Filling"),
        ([SandboxCounts(world="acme", warm=4, problem="Quota: exceeded")], "True Warm"),
    ],
)
def test_the_condition_tells_whether_a_world_has_its_sandboxes(counts: list[SandboxCounts], condition: str) -> None:
    assert said(*counts) == condition


def test_a_pool_that_keeps_none_warm_has_trouble_only_if_none_can_be_made() -> None:
    assert said(SandboxCounts(world="acme"), warmMin=0) == "True Warm"
    assert said(SandboxCounts(world="acme", problem="World: not resolved"), warmMin=0) == "False WorldNotReady"
