"""What a RolloutPool comes to: what is made for one on its own, and what the status of either sort says."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from seatrial_api.conditions import Condition, PoolCondition
from seatrial_api.progress import Progress
from seatrial_api.rollout_pool import CeilingsStatus, EngineStatus, RolloutPool, RolloutPoolSpec, RolloutPoolStatus
from seatrial_api.serving import PoolReport
from seatrial_operator.manifests.serving import endpoint_url, engine_selector, gpus_of, run_engine_selector, spec_digest
from seatrial_operator.plan.observed import PodSeen
from seatrial_operator.plan.statements import Statement, conditions, readiness

QUIET = frozenset({"Starting"})
"""Reasons that are no news."""

_ENGINES_READY = PoolCondition.ENGINES_READY.value
_UNSEEN = RolloutPoolStatus()
_SANDBOX_REASONS = {"ImagePull": "PullFailed", "Quota": "QuotaExceeded", "World": "WorldNotReady"}
_MAX_NAME_CHARS = 53
"""KubeRay's bound on the name of a RayCluster."""


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The RayCluster of a pool on its own."""

    uid: str
    digest: str
    """Of the spec that it was made from."""
    replicas: int
    is_deleting: bool
    message: str = ""
    """What KubeRay says is wrong."""


@dataclass(frozen=True)
class PoolSeen:
    """All that was seen of a pool on its own."""

    cluster: ClusterSeen | None = None
    pods: tuple[PodSeen, ...] = ()
    """Pods of engines."""
    has_token: bool = False
    """Whether the Secret with the token is there."""
    has_service: bool = False
    report: PoolReport | None = None
    """What the serving process answered; none while it does not."""
    problems: tuple[str, ...] = ()
    """What is wrong with the spec: the field, and the way out."""
    taken: str = ""
    """An object of somebody else whose name the pool needs; empty if there is none."""
    refused: str = ""
    """Why the API server would not make an object a moment ago; empty if it did."""


@dataclass(frozen=True, slots=True)
class MakeCluster:
    """Make the Secret, then the RayCluster."""


@dataclass(frozen=True, slots=True)
class MakeService:
    """Make the Service."""


@dataclass(frozen=True, slots=True)
class DeleteCluster:
    """Delete the RayCluster, which was made from another spec, or with a token that nobody knows any more."""

    uid: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Change the number of engines."""

    replicas: int


type PoolAction = MakeCluster | MakeService | DeleteCluster | Scale


def spec_problems(name: str, spec: RolloutPoolSpec) -> list[str]:
    """What keeps a pool on its own from being served: the field, and the way out."""
    found: list[str] = []
    if len(name) > _MAX_NAME_CHARS or not name[0].isalpha():
        found.append(
            f"metadata.name: a pool on its own is a RayCluster, whose name starts with a letter and has at most "
            f"{_MAX_NAME_CHARS} characters; {name} does not fit, so make it anew under another name"
        )
    source = spec.model.source if spec.model else None
    if source and source.s3:
        found.append("spec.model.source.s3: a pool does not read S3; use pvc, hf, or path")
    if source and source.path and not source.path.startswith("/"):
        found.append(
            f"spec.model.source.path: {source.path} must be an absolute path in the pods; bring the model there by "
            "role.podTemplate, or use pvc or hf"
        )
    gpus, wanted = gpus_of(spec), spec.engines.tensor_parallel
    if (gpus or wanted > 1) and gpus != wanted:
        found.append(
            f"spec.engines.tensorParallel: {wanted} GPUs per engine, but role.resources asks for {gpus} per pod, and a "
            "pod runs one engine; make them equal"
        )
    return found


def plan_serving(spec: RolloutPoolSpec, seen: PoolSeen) -> list[PoolAction]:
    """What to do about a pool on its own; nothing while its spec is wrong, so that engines that run go on."""
    if seen.problems or seen.taken:
        return []
    service: list[PoolAction] = [] if seen.has_service else [MakeService()]
    match seen.cluster:
        case None:
            return [MakeCluster(), *service]
        case ClusterSeen(is_deleting=True):
            return service
        case ClusterSeen(digest=digest, uid=uid) if digest != spec_digest(spec) or not seen.has_token:
            return [DeleteCluster(uid), *service]
        case ClusterSeen(replicas=replicas) if replicas != spec.engines.replicas:
            return [Scale(spec.engines.replicas), *service]
        case _:
            return service


def serving_status(pool: RolloutPool, generation: int, seen: PoolSeen, now: datetime) -> RolloutPoolStatus:
    """The whole status of a pool on its own."""
    name, namespace = pool.metadata.name, pool.metadata.namespace or "default"
    former = pool.status or RolloutPoolStatus()
    engines = seen.report.engines if seen.report else []
    num_ready = sum(engine.state == "Ready" for engine in engines)
    statements = [_serving_statement(pool, seen, num_ready, former, generation), *_sandboxes(pool)]
    ready = readiness(statements, f"{num_ready} engines serve at {endpoint_url(name, namespace)}")
    return RolloutPoolStatus(
        observed_generation=generation,
        conditions=conditions([*statements, ready], former.conditions, now, generation),
        replicas=sum(not pod.is_deleting for pod in seen.pods),
        ready_replicas=num_ready,
        selector=engine_selector(name),
        engines=engines,
        endpoint=endpoint_url(name, namespace) if seen.has_service else None,
        sandboxes=former.sandboxes,
    )


@dataclass(frozen=True, slots=True)
class RunView:
    """What is known of the run that owns a pool."""

    pods: tuple[PodSeen, ...]
    """Pods of engines of the current attempt; none between attempts."""
    progress: Progress | None
    """What its driver told last; none if nobody answers."""


def lasting(status: RolloutPoolStatus) -> tuple[object, ...]:
    """What is written at once when it changes; all else is told now and then."""
    stated = tuple((one.type, one.status, one.reason) for one in status.conditions)
    return stated, status.observed_generation, status.replicas, status.ready_replicas, status.endpoint


def owned_status(pool: RolloutPool, generation: int, run: RunView | None, now: datetime) -> RolloutPoolStatus:
    """The whole status of a run's pool.

    The driver tells how its engines are once trials run. Before that they are taken to be as their pods are: a stage
    begins when they answer.
    """
    former = pool.status or RolloutPoolStatus()
    pods = [pod for pod in run.pods if not pod.is_deleting] if run else []
    progress = run.progress if run else None
    serves = progress is not None and bool(progress.stage) and progress.ended is None
    engines = _engines(pods, progress if serves else None)
    num_ready = sum(engine.state == "Ready" for engine in engines)
    statements = [*_owned_statement(pods, engines, serves), *_sandboxes(pool)]
    ready = readiness(statements, "trials can start") if pods else _no_engine(pool)
    return RolloutPoolStatus(
        observed_generation=generation,
        conditions=conditions([*statements, ready], former.conditions, now, generation),
        replicas=len(engines),
        ready_replicas=num_ready,
        selector=run_engine_selector(pool.spec.run or pool.metadata.name),
        engines=engines,
        ceilings=_ceilings(progress) if serves else None,
        sandboxes=former.sandboxes,
    )


def _serving_statement(
    pool: RolloutPool, seen: PoolSeen, num_ready: int, former: RolloutPoolStatus, generation: int
) -> Statement:
    wanted = pool.spec.engines.replicas
    progress = f"{num_ready} of {wanted} engines answer"
    if seen.problems:
        return Statement(_ENGINES_READY, "False", "InvalidSpec", "; ".join(seen.problems))
    if seen.refused:
        return Statement(_ENGINES_READY, "False", "Refused", seen.refused)
    if seen.taken:
        message = (
            f"{seen.taken} is there already and is not this pool's; remove it, or make the pool under another name"
        )
        return Statement(_ENGINES_READY, "False", "NameTaken", message)
    if seen.report is not None and num_ready >= wanted:
        return Statement(_ENGINES_READY, "True", "EnginesReady", progress)
    failures = seen.report.failures if seen.report else {}
    was_ready = _has_been_ready(former.conditions, generation)
    reason = "Degraded" if failures or was_ready else "Starting"
    return Statement(_ENGINES_READY, "False", reason, "; ".join([progress, *_causes(seen, failures)]))


def _causes(seen: PoolSeen, failures: dict[str, str]) -> list[str]:
    """Why engines are missing; the first of each sort, or the message would be a log."""
    causes = [seen.cluster.message] if seen.cluster and seen.cluster.message else []
    causes += [f"{name}: {failure}" for name, failure in sorted(failures.items())][:1]
    causes += [f"pod {pod.name}: {pod.waits_for}" for pod in seen.pods if pod.waits_for][:1]
    if seen.cluster is not None and seen.report is None:
        causes.append("the serving process does not answer yet")
    return causes


def _has_been_ready(former: Sequence[Condition], generation: int) -> bool:
    reasons = {"EnginesReady", "Degraded"}
    return any(
        one.type == _ENGINES_READY and one.reason in reasons and one.observed_generation == generation for one in former
    )


def _owned_statement(pods: Sequence[PodSeen], engines: Sequence[EngineStatus], serves: bool) -> list[Statement]:
    """What is said of a run's engines; nothing while there is none."""
    if not pods:
        return []
    num_ready = sum(engine.state == "Ready" for engine in engines)
    progress = f"{num_ready} of {len(engines)} engines serve"
    if num_ready == len(engines):
        return [Statement(_ENGINES_READY, "True", "EnginesReady", progress)]
    waits = [f"pod {pod.name}: {pod.waits_for}" for pod in pods if pod.waits_for][:1]
    message = "; ".join([progress, *waits])
    return [Statement(_ENGINES_READY, "False", "Degraded" if serves else "Starting", message)]


def _no_engine(pool: RolloutPool) -> Statement:
    message = f"run {pool.spec.run} holds no nodes now"
    return Statement(PoolCondition.READY.value, "False", _ENGINES_READY, message)


def _engines(pods: Sequence[PodSeen], progress: Progress | None) -> list[EngineStatus]:
    """The engines that the driver tells of; before it does, the pods that they will run on."""
    if progress is not None and progress.engines:
        return progress.engines
    return [_engine_of(pod, progress) for pod in sorted(pods, key=lambda pod: pod.name)]


def _engine_of(pod: PodSeen, progress: Progress | None) -> EngineStatus:
    state: Literal["Ready", "Starting", "Failed"] = "Failed" if pod.phase in {"Failed", "Unknown"} else "Starting"
    if progress is not None and pod.phase == "Running":
        state = "Ready"
    return EngineStatus(name=pod.name, state=state, weight_version=progress.weight_version if progress else 0)


def _ceilings(progress: Progress | None) -> CeilingsStatus | None:
    if progress is None or "live" not in progress.ceilings:
        return None
    told = {kind: int(progress.ceilings[kind]) for kind in ("systems", "algorithmic") if kind in progress.ceilings}
    return CeilingsStatus(live=int(progress.ceilings["live"]), **told)


def _sandboxes(pool: RolloutPool) -> list[Statement]:
    """What the broker's counts come to; nothing if the pool keeps no sandboxes."""
    wanted = {one.world: one.warm_min for one in pool.spec.sandboxes}
    if not wanted:
        return []
    kind, counts = PoolCondition.SANDBOXES_READY.value, {one.world: one for one in (pool.status or _UNSEEN).sandboxes}
    for world, least in wanted.items():
        seen = counts.get(world)
        if seen is None:
            return [Statement(kind, "Unknown", "NotCounted", f"the broker has not told of world {world} yet")]
        progress = f"{seen.warm} of {least} sandboxes of world {world} are warm"
        if seen.problem and (seen.warm == 0 or seen.warm + seen.claimed < least):
            reason = _SANDBOX_REASONS.get(seen.problem.partition(":")[0], "Filling")
            return [Statement(kind, "False", reason, f"{progress}; {seen.problem}")]
        if seen.warm + seen.claimed < least:
            return [Statement(kind, "False", "Filling", progress)]
    return [Statement(kind, "True", "Warm", "every world has its least number of sandboxes")]
