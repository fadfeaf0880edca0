"""RolloutPools: a run's own are told about, those on their own are made and served."""

import math
import secrets
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol, assert_never

import aiohttp
import structlog
from pydantic import ValidationError

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.pods import POOL_LABEL, ROLE_LABEL, Role
from seatrial_api.rollout_pool import RolloutPool, RolloutPoolStatus
from seatrial_api.serving import REPORT_PATH, PoolReport
from seatrial_api.spec.model import ModelSpec
from seatrial_operator.config import OperatorConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import RefusedError
from seatrial_operator.kube.resources import (
    PODS,
    RAY_CLUSTERS,
    RLRUNS,
    ROLLOUT_POOLS,
    SECRETS,
    SERVICES,
    Object,
    ObjectKey,
    Watch,
    key_of,
    without_managers,
)
from seatrial_operator.kube.times import utc_now
from seatrial_operator.manifests.checks import pod_problems
from seatrial_operator.manifests.rehearsal import (
    POOL_TEMPLATE_PATH,
    blame_pool_cluster,
    pool_rehearsal,
    rehearsed_cluster,
)
from seatrial_operator.manifests.serving import (
    SPEC_ANNOTATION,
    TOKEN_KEY,
    pool_cluster,
    pool_plans,
    pool_secret,
    pool_service,
    scaled,
    serving_secret_name,
)
from seatrial_operator.plan.pools import (
    QUIET,
    ClusterSeen,
    DeleteCluster,
    MakeCluster,
    MakeService,
    PoolAction,
    PoolSeen,
    RunView,
    Scale,
    lasting,
    owned_status,
    plan_serving,
    serving_status,
    spec_problems,
)
from seatrial_operator.plan.statements import stories
from seatrial_operator.services.events import Events
from seatrial_operator.services.reading import read_pod
from seatrial_operator.services.rehearsing import Rehearsal, rehearse
from seatrial_operator.services.typed import Typed, UnreadableObjectError, is_deleting, is_owned, read_pool, refuse

_TOKEN_BYTES = 32
_OWNED_PATIENCE = 5
"""Figures of a run's pool are told so many times less often than the run's own, which say nearly the same."""

log = structlog.get_logger(__name__)


class Runs(Protocol):
    """Who knows the runs."""

    def view(self, key: ObjectKey) -> RunView | None:
        """What is known of a run; none if it is not known."""
        ...


@dataclass
class PoolService:
    """Reconciles RolloutPools.

    A run's pool costs no request while nothing changes: its object comes from the watch, the run from who knows it.
    """

    client: KubeClient
    http: aiohttp.ClientSession
    runs: Runs
    config: OperatorConfig
    clock: Clock = SYSTEM_CLOCK
    utc_now: Callable[[], datetime] = utc_now
    _known: dict[ObjectKey, Object] = field(default_factory=dict)
    _written_at: dict[ObjectKey, float] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of its keys."""
        return ROLLOUT_POOLS.kind

    @property
    def watches(self) -> Sequence[Watch]:
        """What it wants to hear of."""
        return Watch(ROLLOUT_POOLS, "", self._notice_pool), Watch(RAY_CLUSTERS, POOL_LABEL, _notice_cluster)

    async def keys(self) -> list[ObjectKey]:
        """Every pool that there is now."""
        items = self.client.each_in(ROLLOUT_POOLS, self.config.namespaces)
        return [key async for item in items for key in self._notice_pool(item, is_gone=False)]

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Look at one pool and do what is to be done now; seconds until the next look, none if it is gone."""
        item = self._known.get(key)
        if item is None or "run" not in item["spec"]:
            item = await self.client.find(ROLLOUT_POOLS, key.namespace, key.name)
        if item is None or is_deleting(item):
            self._known.pop(key, None)
            self._written_at.pop(key, None)
            return None
        try:
            pool = read_pool(item)
        except UnreadableObjectError as exc:
            await refuse(self.client, ROLLOUT_POOLS, exc, self.utc_now())
            return self.config.resync_seconds
        model = pool.item.spec.model
        if model is None:
            run = ObjectKey(RLRUNS.kind, key.namespace, pool.item.spec.run or key.name)
            status = owned_status(pool.item, pool.generation, self.runs.view(run), self.utc_now())
        else:
            status = await self._serve(key, pool, model)
        await self._write(key, pool, status)
        is_settled = all(one.status == "True" for one in status.conditions)
        return self.config.status_seconds if is_settled else self.config.poll_seconds

    async def _serve(self, key: ObjectKey, pool: Typed[RolloutPool], model: ModelSpec) -> RolloutPoolStatus:
        """Make what a pool on its own needs; its status."""
        secret = await self.client.find(SECRETS, key.namespace, serving_secret_name(key.name))
        token = b64decode((secret or {}).get("data", {}).get(TOKEN_KEY, "")).decode()
        seen = await self._observe(key, pool, secret, token)
        try:
            actions = plan_serving(pool.item.spec, seen)
            if any(isinstance(action, MakeCluster | DeleteCluster) for action in actions):
                await rehearse(self.client, key.namespace, self._rehearsal(pool, model))
            for action in actions:
                await self._act(key, pool, model, token or secrets.token_urlsafe(_TOKEN_BYTES), action)
        except RefusedError as exc:
            log.warning("the cluster refuses what the pool needs", error=str(exc))
            seen = replace(seen, refused=str(exc))
        return serving_status(pool.item, pool.generation, seen, self.utc_now())

    async def _observe(self, key: ObjectKey, pool: Typed[RolloutPool], secret: Object | None, token: str) -> PoolSeen:
        cluster = await self.client.find(RAY_CLUSTERS, key.namespace, key.name)
        service = await self.client.find(SERVICES, key.namespace, key.name)
        labels = {POOL_LABEL: key.name, ROLE_LABEL: Role.ROLLOUT.value}
        pods = await self.client.list(PODS, key.namespace, labels) if cluster else []
        strange = [item for item in (secret, cluster, service) if item is not None and not is_owned(item, pool.uid)]
        return PoolSeen(
            cluster=_read_cluster(cluster) if cluster else None,
            pods=tuple(read_pod(pod) for pod in pods),
            has_token=bool(token),
            has_service=service is not None,
            report=await self._report(key, token) if cluster and token and not strange else None,
            problems=tuple(self._problems(pool)),
            taken=f"{strange[0]['kind']} {strange[0]['metadata']['name']}" if strange else "",
        )

    def _problems(self, pool: Typed[RolloutPool]) -> list[str]:
        spec = pool.item.spec
        problems = spec_problems(pool.item.metadata.name, spec)
        if not problems and spec.model is not None:
            found = (
                str(problem)
                for plan in pool_plans(pool.item, spec.model)
                for problem in pod_problems(plan, self.config, POOL_TEMPLATE_PATH)
            )
            problems += dict.fromkeys(found)
        return problems

    def _rehearsal(self, pool: Typed[RolloutPool], model: ModelSpec) -> Rehearsal:
        """The pods of a pool that is made, or made anew: engines that run go on while their successors are refused."""
        return Rehearsal(
            [(POOL_TEMPLATE_PATH, template) for template in pool_rehearsal(pool.item, model, self.config)],
            RAY_CLUSTERS,
            lambda: rehearsed_cluster(pool.item, pool.uid, model, self.config),
            blame_pool_cluster,
        )

    async def _report(self, key: ObjectKey, token: str) -> PoolReport | None:
        url = self.config.serving_url.format(pool=key.name, namespace=key.namespace) + REPORT_PATH
        timeout = aiohttp.ClientTimeout(total=self.config.driver_timeout_seconds)
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with self.http.get(url, headers=headers, timeout=timeout, raise_for_status=True) as answer:
                return PoolReport.model_validate_json(await answer.read(), extra="ignore")
        except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as exc:
            log.debug("the serving process does not answer", error=str(exc))
            return None

    async def _act(
        self, key: ObjectKey, pool: Typed[RolloutPool], model: ModelSpec, token: str, action: PoolAction
    ) -> None:
        log.info("acting", action=type(action).__name__)
        match action:
            case MakeCluster():
                await self.client.apply(SECRETS, key.namespace, pool_secret(pool.item, pool.uid, model, token))
                cluster = pool_cluster(pool.item, pool.uid, model, self.config)
                await self.client.create(RAY_CLUSTERS, key.namespace, cluster)
            case MakeService():
                await self.client.create(SERVICES, key.namespace, pool_service(pool.item, pool.uid))
            case DeleteCluster(uid=uid):
                await self.client.delete(RAY_CLUSTERS, key.namespace, key.name, uid=uid, foreground=True)
            case Scale(replicas=replicas):
                await self._scale(key, replicas)
            case _:
                assert_never(action)

    async def _scale(self, key: ObjectKey, replicas: int) -> None:
        """Change the number of engines and nothing else: what they are made of stays as it was made."""
        now = await self.client.get(RAY_CLUSTERS, key.namespace, key.name)
        metadata = {"name": key.name, "resourceVersion": now["metadata"]["resourceVersion"]}
        manifest = {"metadata": metadata, "spec": scaled(now["spec"], replicas)}
        await self.client.apply(RAY_CLUSTERS, key.namespace, manifest)

    async def _write(self, key: ObjectKey, pool: Typed[RolloutPool], status: RolloutPoolStatus) -> None:
        former, now = pool.item.status or RolloutPoolStatus(), self.clock.now()
        interval = self.config.status_seconds * (1 if pool.item.spec.model else _OWNED_PATIENCE)
        is_early = now < self._written_at.get(key, -math.inf) + interval
        if status == former or (is_early and lasting(status) == lasting(former)):
            return
        metadata = {"name": key.name, "uid": pool.uid}
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"sandboxes"})  # the broker's
        written = await self.client.apply_status(ROLLOUT_POOLS, key.namespace, {"metadata": metadata, "status": body})
        self._notice_pool(written, is_gone=False)
        self._written_at[key] = now
        for story in stories(former.conditions, status.conditions, QUIET):
            await Events(self.client, ROLLOUT_POOLS).tell(key, pool.uid, story)

    def _notice_pool(self, item: Object, is_gone: bool) -> list[ObjectKey]:
        key = key_of(ROLLOUT_POOLS, item)
        known = self._known.get(key)
        if is_gone:
            self._known.pop(key, None)
        elif known is None or _version(known) <= _version(item):
            self._known[key] = without_managers(item)
        return [key]


def _notice_cluster(item: Object, _: bool) -> list[ObjectKey]:
    name = item["metadata"]["labels"][POOL_LABEL]
    return [ObjectKey(ROLLOUT_POOLS.kind, item["metadata"]["namespace"], name)]


def _version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])


def _read_cluster(item: Object) -> ClusterSeen:
    metadata, status = item["metadata"], item.get("status") or {}
    failures = [one for one in status.get("conditions") or [] if one["type"] == "ReplicaFailure"]
    failed = next((one["message"] for one in failures if one["status"] == "True"), "")
    return ClusterSeen(
        uid=metadata["uid"],
        digest=(metadata.get("annotations") or {}).get(SPEC_ANNOTATION, ""),
        replicas=item["spec"]["workerGroupSpecs"][0].get("replicas", 0),
        is_deleting=is_deleting(item),
        message=" ".join((failed or status.get("reason") or "").split()),
    )
