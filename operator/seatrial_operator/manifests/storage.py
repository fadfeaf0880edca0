"""Where run storage and sources lie in a run's pods, and the volumes that bring them there."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial_api.base import ApiModel
from seatrial_api.driver_request import PodInputs
from seatrial_api.pods import PVC_MOUNT, REQUEST_MOUNT, SCRATCH_MOUNT, STORAGE_MOUNT
from seatrial_api.rlrun import RLRun, RLRunSpec
from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.model import PvcSource, S3Source, Source
from seatrial_api.spec.operations import StorageSpec
from seatrial_api.walk import objects
from seatrial_operator.config import OperatorConfig

OWN_PREFIX = "seatrial-"
"""Volumes whose names begin so are ours; a podTemplate must leave them alone."""
_UID_CHARS = 8


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of a pod and its mounts in the Ray container."""

    name: str
    source: dict[str, Any]
    """`{"emptyDir": {...}}` and the like."""
    mounts: tuple[PurePosixPath, ...]
    is_read_only: bool = False
    """Whether its mounts are."""

    @property
    def manifest(self) -> dict[str, Any]:
        """As `spec.volumes` has it."""
        return {"name": self.name, **self.source}

    @property
    def mount_manifests(self) -> list[dict[str, Any]]:
        """As the container's `volumeMounts` have it."""
        read_only = {"readOnly": True} if self.is_read_only else {}
        return [{"name": self.name, "mountPath": str(mount), **read_only} for mount in self.mounts]


def storage_of(spec: RLRunSpec, config: OperatorConfig) -> StorageSpec:
    """The run's storage, or the operator's default where the spec names none."""
    named = spec.storage
    return named if named.pvc or named.s3 or named.path else config.storage or named


def base_dir(storage: StorageSpec) -> PurePosixPath:
    """Folder in every pod that relative paths of the spec start at, and that run folders lie in.

    Of a run that is kept in S3 it is each pod's own.
    """
    return SCRATCH_MOUNT if storage.s3 else STORAGE_MOUNT / (storage.pvc.path if storage.pvc else ".")


def run_folder(run: RLRun, uid: str, storage: StorageSpec) -> PurePosixPath:
    """Folder in every pod with all that the run writes; a run made anew under the same name gets another."""
    return base_dir(storage) / f"{run.metadata.name}-{uid[:_UID_CHARS]}"


def kept_in(run: RLRun, uid: str, storage: StorageSpec) -> S3Source | None:
    """The prefix of this run alone, if it is kept in S3."""
    return storage.s3.below(run_folder(run, uid, storage).name) if storage.s3 else None


def report_address(run: RLRun, uid: str, storage: StorageSpec) -> str:
    """Where the run's report lies, for a person."""
    prefix = kept_in(run, uid, storage)
    return f"{prefix.uri if prefix else run_folder(run, uid, storage)}/report.html"


def pod_inputs(spec: RLRunSpec, storage: StorageSpec) -> PodInputs | None:
    """What every pod of a run that is kept in S3 has to bring for itself; else a volume brings it to all."""
    if storage.s3 is None:
        return None
    task_sets = [item for _, item, _ in objects(spec.data) if isinstance(item, TaskSet)]
    return PodInputs(base_dir=Path(base_dir(storage)), model=spec.model.source, tasks=task_sets)


def run_volumes(spec: ApiModel, storage: StorageSpec) -> list[Volume]:
    """Volumes of every pod that works on a spec: storage, a folder of its own, and the claims that sources name."""
    stored = storage.pvc.claim if storage.pvc else None
    claims = sorted({pvc.claim for pvc in _pvcs(spec)})
    volumes = [Volume(f"{OWN_PREFIX}scratch", {"emptyDir": {}}, (SCRATCH_MOUNT,))]
    if stored:
        also = (PVC_MOUNT / stored,) if stored in claims else ()
        volumes.append(Volume(f"{OWN_PREFIX}storage", _claim(stored), (STORAGE_MOUNT, *also)))
    return volumes + [
        Volume(f"{OWN_PREFIX}pvc-{index}", _claim(claim, read_only=True), (PVC_MOUNT / claim,), is_read_only=True)
        for index, claim in enumerate(claims)
        if claim != stored
    ]


def request_volume(secret: str) -> Volume:
    """The Secret with the driver's request, on the head alone; its token comes as an environment variable."""
    source = {"secret": {"secretName": secret, "items": [{"key": "run.json", "path": "run.json"}]}}
    return Volume(f"{OWN_PREFIX}request", source, (REQUEST_MOUNT,), is_read_only=True)


def s3_source(spec: ApiModel, storage: StorageSpec) -> S3Source | None:
    """The S3 place whose credentials the pods get: run storage, else the first source in the spec's order."""
    sources = (item.s3 for _, item, _ in objects(spec) if isinstance(item, Source) and item.s3)
    return storage.s3 or next(sources, None)


def _pvcs(spec: ApiModel) -> Iterator[PvcSource]:
    for _, item, _ in objects(spec):
        if isinstance(item, Source) and item.pvc:
            yield item.pvc


def _claim(name: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name, **({"readOnly": True} if read_only else {})}}
