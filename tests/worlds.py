"""WorldImages for tests."""

from typing import Any

from seatrial_api.world_image import WorldImage, WorldImageStatus

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


def world(status: WorldImageStatus | None = None, **spec: Any) -> WorldImage:
    """A world of one image, with fields of its spec changed."""
    manifest = {
        "apiVersion": "seatrial.dev/v1alpha1",
        "kind": "WorldImage",
        "metadata": {"name": "acme", "namespace": "team"},
        "spec": {"image": "ghcr.io/worlds/acme:v1", **spec},
    }
    return WorldImage.model_validate(manifest).model_copy(update={"status": status})
