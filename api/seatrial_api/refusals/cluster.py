"""What the operator cannot honour in a cluster."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from seatrial_api.asked_harnesses import asked_harnesses
from seatrial_api.refusals.refusal import Refusal, Row, asked_for
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.model import S3Source, Source
from seatrial_api.spec.operations import StorageSpec
from seatrial_api.walk import objects

_NO_STORAGE = (
    "nothing of the run would outlive its pods, and the operator has no default; set storage.pvc or storage.s3, or the "
    "chart's config.storage"
)
_PATH_STORAGE = "a folder in pods is gone with them; set storage.pvc or storage.s3"
_FILES_SYNC = "pods of a run that is kept in S3 share no folder; choose gloo or nccl, or set storage.pvc"
_TWO_SECRETS = "pods get the keys of one Secret; name {first} here as well, or use a role and leave it out everywhere"

_NO_WORLD = "provider kubernetes makes pods of a WorldImage, and none is named; set it, or choose another provider"

_IN_RAYS_PODS = ("archipelago", "single-turn")
"""Harnesses that need no program in the sandbox, not even a terminal's."""
_NO_PROGRAM = (
    "no image brings what {name} needs to Ray's pods, where sandboxes of provider {provider} are; choose the provider "
    "kubernetes, or a harness among archipelago, single-turn or module:Class"
)

_CLUSTER: tuple[Row, ...] = (
    ("spec.sandbox.world", lambda spec: spec.sandbox.provider == "kubernetes" and not spec.sandbox.world, _NO_WORLD),
    ("spec.storage.path", lambda spec: spec.storage.path is not None, _PATH_STORAGE),
)


def in_cluster(spec: RLRunSpec, default_storage: StorageSpec | None) -> Iterator[Refusal]:
    """What the operator cannot honour besides what nobody can.

    Args:
        spec: The run.
        default_storage: The operator's default; none if it is not known here.
    """
    yield from asked_for(_CLUSTER, spec)
    yield from _of_harnesses(spec)
    if default_storage is not None and spec.storage == StorageSpec():
        yield from _default(default_storage)
    storage = spec.storage if spec.storage != StorageSpec() else default_storage or StorageSpec()
    if storage.s3 is not None and spec.async_.weight_sync.method == "files":
        yield Refusal("spec.async.weightSync.method", _FILES_SYNC)
    secrets = [storage.s3.secret] if storage.s3 else []
    for path, item, _ in objects(spec, path="spec"):
        match item:
            case S3Source(secret=secret) if not path.startswith("spec.storage"):
                secrets.append(secret)
                if secret != secrets[0]:
                    yield Refusal(f"{path}.secret", _TWO_SECRETS.format(first=secrets[0] or "none"))
            case Source(path=str() as folder) if not folder.startswith("/"):
                yield from _of_no_volume(f"{path}.path", folder, storage)
            case _:
                pass


def _of_harnesses(spec: RLRunSpec) -> Iterator[Refusal]:
    provider = spec.sandbox.provider
    for field, name in asked_harnesses(spec):
        if provider != "kubernetes" and ":" not in name and name not in _IN_RAYS_PODS:
            yield Refusal(field, _NO_PROGRAM.format(name=name, provider=provider))


def _default(storage: StorageSpec) -> Iterator[Refusal]:
    """What is wrong with the operator's default, for a run that has to take it."""
    if storage.path is not None:
        yield Refusal("spec.storage", f"the operator's default: {_PATH_STORAGE}")
    elif storage == StorageSpec():
        yield Refusal("spec.storage", _NO_STORAGE)


def _of_no_volume(field: str, folder: str, storage: StorageSpec) -> Iterator[Refusal]:
    """What is wrong with a relative path; an absolute one is an image's own."""
    if storage.s3 is not None:
        yield Refusal(
            field, f"{folder} starts at the volume of storage.pvc, and the run is kept in S3; set s3, hf or pvc"
        )
    elif _leaves_volume(folder, storage):
        yield Refusal(
            field,
            f"{folder} starts at the run's folder of storage.pvc and leaves that volume; keep it inside, or set pvc",
        )


def _leaves_volume(path: str, storage: StorageSpec) -> bool:
    """Whether a relative path climbs above the root of the storage's volume."""
    start = PurePosixPath(storage.pvc.path if storage.pvc else ".")
    depth = 0
    for part in (start / path).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False
