"""Runs whose agents are programs need worlds that bring them."""

from datetime import UTC, datetime
from typing import Any, override

from seatrial_api.rlrun import RLRun, RLRunStatus
from seatrial_operator.config import OperatorConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.resources import Resource
from seatrial_operator.plan.observed import RunObject
from seatrial_operator.services.validation import missing_references
from tests.manifests import run_manifest

type Object = dict[str, Any]


class OneWorld(KubeClient):
    """A cluster in which every object that is asked for is there, and every world is this one."""

    def __init__(self, **world: Any) -> None:
        self._world = world

    @override
    async def find(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        return {"metadata": {"name": name, "namespace": namespace}, "spec": self._world}


async def missing(client: KubeClient, **changes: Any) -> tuple[str, ...]:
    """What a run in the world `acme` lacks."""
    sandbox = {"provider": "kubernetes", "world": "acme"}
    run = RLRun.model_validate(run_manifest(metadata__namespace="team", spec__sandbox=sandbox, **changes))
    seen = RunObject(run, "uid", 1, "1", datetime(2026, 1, 1, tzinfo=UTC), RLRunStatus())
    return await missing_references(client, seen, OperatorConfig())


async def test_a_world_without_an_agents_program_is_named_with_the_field_that_asks_for_it() -> None:
    lacking = OneWorld(image="acme")
    told = "WorldImage team/acme does not bring codex; set its spec.harnesses, or choose another harness"
    assert await missing(lacking, spec__harness__name="codex") == (f"spec.harness.name: {told}",)
    (one,) = await missing(lacking, spec__stages__1__evaluate__harnesses=["archipelago", "opencode"])
    assert one.startswith("spec.stages[1].evaluate.harnesses: WorldImage team/acme does not bring opencode")


async def test_a_world_that_brings_agents_or_need_not_is_enough() -> None:
    assert await missing(OneWorld(image="acme", harnesses=True), spec__harness__name="codex") == ()
    assert await missing(OneWorld(image="acme"), spec__harness__name="terminus-2") == ()
