"""The thin Ray image: system and interpreter only. Pods mount this checkout, with its locked environment, beside them.

An image with all of torch, vLLM and Ray would weigh gigabytes and be made anew for each change of a line.
"""

from pathlib import Path
from typing import Any

from hack.cluster.images.archive import Image, Layer
from hack.cluster.images.python import installed, interpreter
from hack.cluster.images.store import archived
from hack.cluster.images.system import libraries, system
from hack.cluster.layout import ROOT
from hack.cluster.volumes import local_volume

RAY = "localhost/seatrial-ray:test"
_ENVIRONMENT = ROOT / ".venv"
_VOLUME = "checkout"


def ray_image() -> Path:
    """Archive of an image whose `python` and `ray` are those of the mounted checkout."""

    def fill(layer: Layer) -> None:
        interpreter(layer)
        system(layer)
        libraries(layer, (file for file in _ENVIRONMENT.rglob("*.so*") if file.is_file()))
        layer.folder(str(ROOT))

    env = {
        "PATH": f"{_ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/home/seatrial",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    image = Image(RAY, command=("bash",), env=env, folder="/home/seatrial")
    return archived(image, fill, made_of=installed())


def checkout_volume(namespace: str) -> list[dict[str, Any]]:
    """A volume over this checkout, read-only, and a namespace's claim to it."""
    return local_volume(namespace, _VOLUME, ROOT, access="ReadOnlyMany")


def with_checkout(container: str) -> dict[str, Any]:
    """The part of a pod template that mounts the checkout where it lies here, so that its environment works."""
    mount = {"name": _VOLUME, "mountPath": str(ROOT), "readOnly": True}
    volume = {"name": _VOLUME, "persistentVolumeClaim": {"claimName": _VOLUME, "readOnly": True}}
    return {"spec": {"containers": [{"name": container, "volumeMounts": [mount]}], "volumes": [volume]}}
