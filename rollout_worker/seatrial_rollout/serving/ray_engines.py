"""An engine on a given node of the Ray cluster, and the nodes that offer themselves."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.pods import Role
from seatrial_api.serving import ServingRequest
from seatrial_rollout.engine.errors import EngineError
from seatrial_rollout.engine.model_files import find_model
from seatrial_rollout.engine.pool import EnginePool, PoolOptions
from seatrial_rollout.serving.fleet import EngineNode

_BIT = 0.001
"""Of the resource that each pod has 1 of: enough to land there."""


def rollout_nodes() -> list[EngineNode]:
    """The nodes that are alive now; blocks."""
    return [
        EngineNode(node["NodeID"], node["NodeManagerHostname"], has_gpus=bool(node["Resources"].get("GPU")))
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get(Role.ROLLOUT.ray_resource)
    ]


def engine_starter(
    request: ServingRequest, work_dir: Path, clock: Clock = SYSTEM_CLOCK
) -> Callable[[EngineNode], Awaitable[EnginePool]]:
    """What starts an engine on a node.

    Args:
        request: What to serve.
        work_dir: Folder for the engines' logs, on their nodes.
        clock: The time.
    """
    return partial(_start_engine, request, work_dir, clock)


async def _start_engine(request: ServingRequest, work_dir: Path, clock: Clock, node: EngineNode) -> EnginePool:
    """Find the model on the node, and start a pool of one engine there.

    Raises:
        EngineError: the engine did not come up, or the node is lost.
        InvalidInputError: the model is not there.
    """
    there = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node.node_id, soft=False)}
    find = ray.remote(find_model).options(**there)
    with _translating(node):
        model_path: Path = await find.remote(request.model.source, request.base_dir)
    options = PoolOptions(
        work_dir=work_dir,
        device="cuda" if node.has_gpus else "cpu",
        names=(node.engine_name,),
        actor_options={**there, "resources": {Role.ROLLOUT.ray_resource: _BIT}},
    )
    engines = request.engines.model_copy(update={"replicas": 1})
    pool = EnginePool(engines, request.model, model_path, options, clock)
    with _translating(node):
        await pool.start()
    return pool


@contextmanager
def _translating(node: EngineNode) -> Iterator[None]:
    try:
        yield
    except RayTaskError as error:  # wraps what was raised there, with a traceback that is not for people
        raise error.cause from error
    except RayError as error:
        raise EngineError(f"node {node.host} was lost: {error}") from error
