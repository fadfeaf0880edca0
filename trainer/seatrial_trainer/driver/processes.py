"""The processes of a segment, by Ray: a Ray of our own, or the one of the cluster that we were started in."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, override

import ray
import structlog

from seatrial_api.asked_harnesses import asked_harnesses
from seatrial_api.ceilings import trial_places
from seatrial_api.pods import Role
from seatrial_api.rlrun import RLRunSpec
from seatrial_rollout.engine.pool import EnginePool, PoolOptions
from seatrial_rollout.judge.actor import JudgeHost
from seatrial_rollout.judge.keys import read_keys
from seatrial_rollout.object_store.handover import SHARED_FOLDER, SharedFolder
from seatrial_rollout.trials.fleet import TrialFleet
from seatrial_rollout.trials.spawn import HostConfig
from seatrial_trainer.driver.inputs import Inputs
from seatrial_trainer.driver.placement import Placement, require_gpus
from seatrial_trainer.driver.telemetry import Telemetry
from seatrial_trainer.policy.group import PolicyGroup
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.storage.run_storage import RunStorage

_OBJECT_STORE_BYTES = 256 << 20
"""Batches are small and trajectories travel by value; Ray's default would take a third of a laptop's memory."""

_RAY_TRIES = 3
_TOO_SLOW = "timed out during startup"
"""In what Ray raises then, which is of no class of its own."""

_TINKER_KEY = "TINKER_API_KEY"

log = structlog.get_logger()


class Processes(Protocol):
    """Makes what a cluster consists of; starting and stopping it is the cluster's business."""

    async def connect(self) -> None:
        """Be ready to start processes; doing so again does nothing.

        Raises:
            InvalidInputError: if what the run asks for is not there.
            WaitTimeoutError: if pods do not join, naming them.
        """
        ...

    async def disconnect(self) -> None:
        """End what `connect` began, however far it came."""
        ...

    def engines(self) -> EnginePool:
        """All engines, not started yet."""
        ...

    def trial_hosts(self) -> TrialFleet:
        """All trial hosts, not started yet."""
        ...

    def judge(self) -> JudgeHost | None:
        """The judge's gateway, not started yet; none if the run has none."""
        ...

    async def start_policy(self, spec: RLRunSpec) -> PolicyGroup:
        """The policy ranks, ready to train as a spec says."""
        ...


@dataclass
class RayProcesses(Processes):
    """Processes as Ray actors, each on a pod of its role where there are pods.

    Paths that actors are given lie in the run's folder or beside the manifest, which every pod sees; where pods share
    no volume, `files` hands over what is in the run's folder. What is only a host's own, its sandboxes and sockets,
    stays on its pod.
    """

    spec: RLRunSpec
    inputs: Inputs
    storage: RunStorage
    telemetry: Telemetry
    placement: Placement
    run_name: str
    on_connected: Callable[[], None] = lambda: None
    """Called on the event loop once Ray is up: it has put its own signal handlers in place then."""
    files: SharedFolder = SHARED_FOLDER
    """How ranks, engines and driver get at each other's files."""
    _connecting: asyncio.Future[None] | None = field(default=None, init=False)
    _judge_keys: Mapping[str, str] = field(init=False, repr=False)
    _policy_keys: Mapping[str, str] = field(init=False, repr=False)
    """Of the service that trains, for the policy's rank alone; where ranks have pods, their pods hold them."""

    def __post_init__(self) -> None:
        self._judge_keys = read_keys(self.spec.judge, os.environ) if self.spec.judge else {}
        has_key = self.spec.trainer.backend == "tinker" and _TINKER_KEY in os.environ
        self._policy_keys = {_TINKER_KEY: os.environ[_TINKER_KEY]} if has_key else {}

    @override
    async def connect(self) -> None:
        if ray.is_initialized():
            return
        self.telemetry.activity("starting Ray")
        wanted = self.spec.topology.gpus_per_node
        loop = asyncio.get_running_loop()
        hidden = self._judge_keys.keys() | self._policy_keys.keys()
        self._connecting = loop.run_in_executor(None, lambda: _init_ray(with_gpus=wanted > 0, hidden=hidden))
        await asyncio.shield(self._connecting)
        self.on_connected()
        await self.placement.wait(ray.cluster_resources, self.telemetry.activity)
        require_gpus(wanted, ray.cluster_resources())

    @override
    async def disconnect(self) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is None:
            return
        with suppress(Exception):  # whoever waited for it has been told
            await connecting  # a thread cannot be cancelled
        ray.shutdown()

    @override
    def engines(self) -> EnginePool:
        spec = self.spec
        lengths = spec.model.context_length
        options = PoolOptions(
            work_dir=self.storage.logs,
            context_length=max(lengths.train, lengths.eval or 0),
            device="cuda" if ray.cluster_resources().get("GPU") else "cpu",
            weight_transfer="nccl" if spec.async_.weight_sync.method == "nccl" else "gloo",
            actor_options=self._gpu_share() | self.placement.options(Role.ROLLOUT),
            files=self.files,
            tells_experts=spec.trainer.router_replay,
        )
        return EnginePool(spec.rollout.engines, spec.model, self.inputs.model_path, options)

    @override
    def trial_hosts(self) -> TrialFleet:
        agents = self.spec.topology.agents
        config = HostConfig(
            self.inputs.model_path,
            sandbox=self.spec.sandbox,
            harnesses=tuple({name for _, name in asked_harnesses(self.spec)}),
            num_trials=trial_places(agents),
        )
        return TrialFleet(
            config,
            agents.replicas * agents.hosts_per_replica,
            self.placement.options(Role.AGENTS),
        )

    @override
    def judge(self) -> JudgeHost | None:
        if self.spec.judge is None:
            return None
        audit = self.storage.logs / "judge.jsonl"
        options = self.placement.options(Role.HEAD)
        return JudgeHost(self.spec.judge, self.run_name, self._judge_keys, audit, options)

    @override
    async def start_policy(self, spec: RLRunSpec) -> PolicyGroup:
        return await PolicyGroup.start(
            PolicySetup.from_run(spec),
            self.inputs.model_path,
            actor_options=self._gpu_share() | self.placement.options(Role.TRAIN),
            files=self.files,
            environment=self._policy_keys,
        )

    def _gpu_share(self) -> dict[str, Any]:
        """Ray options of engines and ranks where they have to share the GPUs that there are; else nothing."""
        gpus = ray.cluster_resources().get("GPU", 0)
        engines = self.spec.rollout.engines
        ranks = self.spec.trainer.ranks if self.spec.trainer.backend != "tinker" else 0  # it computes elsewhere
        processes = engines.replicas * engines.tensor_parallel + ranks
        if not gpus or processes <= gpus or engines.tensor_parallel > 1:
            return {}
        return {"num_gpus": gpus / processes}


def _init_ray(*, with_gpus: bool, hidden: Iterable[str]) -> None:
    """Join the cluster that we were started in, or start one for ourselves.

    Args:
        with_gpus: Whether processes may have GPUs.
        hidden: Environment variables that no process of ours is to inherit: keys, which agents' code might look for.
    """
    kept = {name: os.environ.pop(name) for name in hidden}
    try:
        _connect_ray(with_gpus=with_gpus)
    finally:
        os.environ.update(kept)


def _connect_ray(*, with_gpus: bool) -> None:
    os.environ.setdefault("RAY_worker_niceness", "0")  # trials and policy go before the engines, which are nice
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, log_to_driver=False)
        return
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    if not with_gpus:
        own["num_gpus"] = 0
    in_time(lambda: ray.init(address="local", log_to_driver=False, **own))


def in_time(start: Callable[[], object]) -> None:
    """Start a Ray of our own, again if need be: it gives itself 30 s, which a busy machine may not have.

    What an earlier try has started ends with this process.

    Args:
        start: Starts it.
    """
    for tries_left in reversed(range(_RAY_TRIES)):
        try:
            start()
        except Exception as error:
            if not tries_left or _TOO_SLOW not in str(error):
                raise
            log.warning("ray did not start in time and is started again", tries_left=tries_left)
            ray.shutdown()
        else:
            return
