"""What the watches told of runs and of what belongs to them, kept small."""

from collections import defaultdict
from dataclasses import dataclass, field

import structlog

from seatrial_operator.kube.resources import RLRUNS, Object, ObjectKey
from seatrial_operator.plan.observed import JobSeen, PodSeen, RunObject
from seatrial_operator.services.reading import UnreadableRunError, read_job, read_pod, read_run, run_of

log = structlog.get_logger(__name__)


@dataclass
class RunStore:
    """The newest version that was met of each object; what is decided on its absence is asked of the API server."""

    _runs: dict[ObjectKey, RunObject] = field(default_factory=dict)
    _jobs: dict[ObjectKey, dict[str, Object]] = field(default_factory=lambda: defaultdict(dict))
    _pods: dict[ObjectKey, dict[str, PodSeen]] = field(default_factory=lambda: defaultdict(dict))

    def run(self, key: ObjectKey) -> RunObject | None:
        """The run, as it was last met."""
        return self._runs.get(key)

    def jobs(self, key: ObjectKey, run_uid: str) -> tuple[JobSeen, ...]:
        """RayJobs with the run's label."""
        return tuple(read_job(item, run_uid) for item in self._jobs.get(key, {}).values())

    def pods(self, key: ObjectKey) -> tuple[PodSeen, ...]:
        """Pods with the run's label."""
        return tuple(self._pods.get(key, {}).values())

    def keep_run(self, key: ObjectKey, item: Object) -> RunObject:
        """A run was met; an older version than the one that is known is passed over.

        Raises:
            UnreadableRunError: if it does not fit this operator's models.
        """
        known = self._runs.get(key)
        version = int(item["metadata"]["resourceVersion"])
        if known is None or int(known.resource_version) < version:
            known = self._runs[key] = read_run(item, known)
        return known

    def replace_jobs(self, key: ObjectKey, items: list[Object]) -> None:
        """These are all RayJobs of the run."""
        self._jobs[key] = {item["metadata"]["name"]: _trimmed(item) for item in items}

    def replace_pods(self, key: ObjectKey, items: list[Object]) -> None:
        """These are all pods of the run."""
        self._pods[key] = {item["metadata"]["uid"]: read_pod(item) for item in items}

    def keep_job(self, key: ObjectKey, item: Object) -> None:
        """A RayJob was met."""
        self._jobs[key][item["metadata"]["name"]] = _trimmed(item)

    def forget(self, key: ObjectKey) -> None:
        """The run is gone."""
        for objects in (self._runs, self._jobs, self._pods):
            objects.pop(key, None)

    def notice_run(self, item: Object, is_gone: bool) -> list[ObjectKey]:
        """An event about a run."""
        key = ObjectKey(RLRUNS.kind, item["metadata"]["namespace"], item["metadata"]["name"])
        known = self._runs.get(key)
        if is_gone:
            if known is not None and known.uid == item["metadata"]["uid"]:
                del self._runs[key]
            return [key]
        try:
            self.keep_run(key, item)
        except UnreadableRunError as exc:
            log.debug("cannot read a run", run=str(key), error=str(exc))
        return [key]

    def notice_job(self, item: Object, is_gone: bool) -> list[ObjectKey]:
        """An event about a RayJob."""
        key, name = _owner(item), item["metadata"]["name"]
        known = self._jobs[key].get(name)
        if not is_gone:
            self._jobs[key][name] = _trimmed(item)
        elif known is not None and known["metadata"]["uid"] == item["metadata"]["uid"]:
            del self._jobs[key][name]
        _drop_if_empty(self._jobs, key)
        return [key]

    def notice_pod(self, item: Object, is_gone: bool) -> list[ObjectKey]:
        """An event about a pod."""
        key, uid = _owner(item), item["metadata"]["uid"]
        former = self._pods[key].get(uid)
        if is_gone:
            self._pods[key].pop(uid, None)
            _drop_if_empty(self._pods, key)
            return [key]
        now = self._pods[key][uid] = read_pod(item)
        return [key] if now != former else []


def _drop_if_empty[T](objects: dict[ObjectKey, dict[str, T]], key: ObjectKey) -> None:
    if not objects[key]:
        del objects[key]


def _owner(item: Object) -> ObjectKey:
    return ObjectKey(RLRUNS.kind, item["metadata"]["namespace"], run_of(item))


def _trimmed(item: Object) -> Object:
    """A RayJob without its pod templates, which make up nearly all of it."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    kept = ("name", "uid", "labels", "annotations", "ownerReferences", "deletionTimestamp")
    told = ("rayClusterName", "jobDeploymentStatus", "reason", "message")
    return {
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"suspend": spec.get("suspend", False)},
        "status": {key: status[key] for key in told if key in status},
    }
