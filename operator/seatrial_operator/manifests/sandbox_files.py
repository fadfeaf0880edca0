"""The files of a sandbox: the runtime, the world's own, what is brought beside them, and where an agent may write."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from seatrial_api.sandboxd_config import WRITABLE_FOLDERS
from seatrial_api.sandboxes import BRING, FILES_MOUNT, HARNESSES_MOUNT, RUNTIME_MOUNT, TASK_ARGUMENT, TASK_FILE
from seatrial_api.world_image import ImageVolume, WorldImageSpec
from seatrial_operator.manifests.names import Manifest

_WORLD_VOLUME = "seatrial-world"
_IDENTITY_VOLUME = "seatrial-identity"
_IDENTITY = FILES_MOUNT / "identity"
_IDENTITY_SIZE = "16Mi"
_STAGE = FILES_MOUNT / "stage"
_TASK_VOLUME = "seatrial-task"
_TASK_SIZE = "1Mi"


@dataclass(frozen=True, slots=True)
class Brought:
    """A folder that has an image of its own and lies in the same place in sandboxes, where nobody writes it."""

    name: str
    """Of the volume."""
    place: PurePosixPath
    """In the image, and in a sandbox."""
    size: str
    """Most that a copy may take."""

    def volume(self, image: str, *, has_image_volumes: bool) -> Manifest:
        """The folder, straight from its image where that can be mounted."""
        source = {"image": {"reference": image}} if has_image_volumes else {"emptyDir": {"sizeLimit": self.size}}
        return {"name": self.name, **source}

    def mount(self, *, has_image_volumes: bool) -> Manifest:
        """Where a container finds it."""
        mount = {"name": self.name, "mountPath": str(self.place), "readOnly": True}
        return mount | ({"subPath": str(self.place)[1:]} if has_image_volumes else {})

    def copy(self, *mounts: Manifest) -> Manifest:
        """What an init container of its image does where images cannot be mounted.

        Args:
            mounts: What it needs besides, to run.
        """
        stage = {"name": self.name, "mountPath": str(_STAGE)}
        return {"command": [*BRING, f"{self.place}={_STAGE}"], "volumeMounts": [*mounts, stage]}


RUNTIME = Brought("seatrial-runtime", RUNTIME_MOUNT, "1Gi")
"""`sandboxd`, our tool servers and their Python."""
HARNESSES = Brought("seatrial-harnesses", HARNESSES_MOUNT, "4Gi")
"""Programs of agents that others wrote."""


def world_copy(spec: WorldImageSpec, runtime: Manifest) -> Manifest:
    """What an init container of the world's image does: its workdir becomes a volume, and its user gets a name.

    Args:
        spec: The world.
        runtime: Mount of the runtime.
    """
    stage = {"name": _WORLD_VOLUME, "mountPath": str(_STAGE)}
    identity = {"name": _IDENTITY_VOLUME, "mountPath": str(_IDENTITY)}
    command = [*BRING, "--identity", str(_IDENTITY), "--if-there", f"{spec.workdir}={_STAGE}"]
    return {"command": command, "volumeMounts": [runtime, stage, identity]}


def files_copies(spec: WorldImageSpec, runtime: Manifest, *, has_image_volumes: bool) -> Iterator[tuple[str, Manifest]]:
    """The same for each image of files: which image an init container has, and what it does.

    Args:
        spec: The world.
        runtime: Mount of the runtime.
        has_image_volumes: Whether images can be mounted; if not, the container is of the image itself.
    """
    for index, one in enumerate(spec.populate):
        source = PurePosixPath(one.source)
        mounts = [runtime, {"name": _target_volume(index, one, spec), "mountPath": str(_STAGE)}]
        if has_image_volumes:
            mount = FILES_MOUNT / "files"
            mounts.append({"name": _files_volume(index), "mountPath": str(mount), "readOnly": True})
            source = mount / one.source.lstrip("/")
        target = _STAGE
        if _is_in_workdir(one, spec):
            target /= PurePosixPath(one.target).relative_to(spec.workdir)
        yield one.image, {"command": [*BRING, f"{source}={target}"], "volumeMounts": mounts}


def starts_with_task(spec: WorldImageSpec) -> bool:
    """Whether the world's gateway is started for the task of the trial that has taken the sandbox."""
    return TASK_ARGUMENT in spec.mcp.command


def shared_mounts(spec: WorldImageSpec) -> list[Manifest]:
    """What the world and the tool servers beside it see in the same places: the workdir, and files brought in."""
    targets = [
        {"name": _target_volume(index, one, spec), "mountPath": one.target}
        for index, one in enumerate(spec.populate)
        if not _is_in_workdir(one, spec)
    ]
    task = [{"name": _TASK_VOLUME, "mountPath": str(TASK_FILE.parent)}] if starts_with_task(spec) else []
    return [{"name": _WORLD_VOLUME, "mountPath": spec.workdir}, *targets, *task]


def world_mounts(spec: WorldImageSpec) -> list[Manifest]:
    """What the world's container mounts besides the runtime."""
    scratch = [{"name": _scratch_volume(path), "mountPath": path} for path in WRITABLE_FOLDERS]
    identity = [
        {"name": _IDENTITY_VOLUME, "mountPath": f"/etc/{name}", "subPath": name, "readOnly": True}
        for name in ("passwd", "group")
    ]
    return [*shared_mounts(spec), *scratch, *identity]


def volumes(spec: WorldImageSpec, size: str, *, has_image_volumes: bool) -> list[Manifest]:
    """All volumes besides the runtime.

    Args:
        spec: The world.
        size: Most that each volume that an agent may write holds.
        has_image_volumes: Whether images can be mounted.
    """
    names = [_WORLD_VOLUME, *map(_scratch_volume, WRITABLE_FOLDERS)]
    names += [_target_volume(index, one, spec) for index, one in enumerate(spec.populate)]
    writable = [
        *({"name": name, "emptyDir": {"sizeLimit": size}} for name in dict.fromkeys(names)),
        {"name": _IDENTITY_VOLUME, "emptyDir": {"sizeLimit": _IDENTITY_SIZE}},
        *([{"name": _TASK_VOLUME, "emptyDir": {"sizeLimit": _TASK_SIZE}}] if starts_with_task(spec) else []),
    ]
    if not has_image_volumes:
        return writable
    files = [
        {"name": _files_volume(index), "image": {"reference": one.image}} for index, one in enumerate(spec.populate)
    ]
    return [*writable, *files]


def _is_in_workdir(one: ImageVolume, spec: WorldImageSpec) -> bool:
    return PurePosixPath(one.target).is_relative_to(spec.workdir)


def _files_volume(index: int) -> str:
    return f"files-{index}"


def _target_volume(index: int, one: ImageVolume, spec: WorldImageSpec) -> str:
    return _WORLD_VOLUME if _is_in_workdir(one, spec) else f"target-{index}"


def _scratch_volume(path: str) -> str:
    return f"scratch-{path[1:]}"
