"""Objects of a WorldImage: pods that pull its images to nodes, and the Secret that nodes pull with."""

from base64 import b64encode
from collections.abc import Collection, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

from seatrial_api.world_image import WorldImage, WorldImageSpec
from seatrial_operator.manifests.names import MANAGED_BY, Manifest, owner_reference

PRE_PULL_LABEL = "seatrial.dev/pre-pull"
"""Name of the WorldImage that a pod pulls for."""
IMAGES_LABEL = "seatrial.dev/images"
"""Tells what a pod pulls: equal images, equal values."""
EXPIRES_ANNOTATION = "seatrial.dev/expires-at"
"""On a pull secret: when the first of its tokens expires."""
REGISTRIES_ANNOTATION = "seatrial.dev/registries"
"""On a pull secret: the registries that it is for."""
DOCKER_CONFIG_KEY = ".dockerconfigjson"

_PULL_SECONDS = 3600
"""Time that a node has to pull; then its pod is made anew."""
_NOBODY = 65532
_HASH_CHARS = 16
_TINY = {"cpu": "10m", "memory": "32Mi"}


def images_of(spec: WorldImageSpec) -> list[str]:
    """Every image that a sandbox of a world is made of; the world's own comes first."""
    return [spec.image, *(sidecar.image for sidecar in spec.mcp.sidecars), *(volume.image for volume in spec.populate)]


def images_id(spec: WorldImageSpec, image: str) -> str:
    """What tells one set of images from another.

    Args:
        spec: The world.
        image: Its image, by digest.
    """
    return sha256("\n".join([image, *images_of(spec)[1:]]).encode()).hexdigest()[:_HASH_CHARS]


def pull_pod(world: WorldImage, uid: str, image: str, node: str) -> Manifest:
    """The pod that makes one node pull everything that a sandbox of this world is made of.

    Args:
        world: The world.
        uid: Its `metadata.uid`.
        image: Its image, by digest.
        node: Name of the node.
    """
    spec, identity = world.spec, images_id(world.spec, image)
    volumes = [{"name": f"files-{index}", "image": {"reference": one.image}} for index, one in enumerate(spec.populate)]
    secret = spec.pull_secret or pull_secret_name(world.metadata.name)
    mounts = [{"name": one["name"], "mountPath": f"/seatrial/{one['name']}", "readOnly": True} for one in volumes]
    labels = {PRE_PULL_LABEL: world.metadata.name, IMAGES_LABEL: identity}
    node_hash = sha256(f"{identity} {node}".encode()).hexdigest()[:_HASH_CHARS]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(world, uid, f"{world.metadata.name}-pull-{node_hash}", labels),
        "spec": {
            "affinity": {"nodeAffinity": _only(node)},
            "tolerations": [{"operator": "Exists"}],  # the user chose the node
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _PULL_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "imagePullSecrets": [{"name": secret}],
            **({"runtimeClassName": spec.runtime_class} if spec.runtime_class else {}),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _NOBODY,
                "runAsGroup": _NOBODY,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                _container("world", image) | ({"volumeMounts": mounts} if mounts else {}),
                *(_container(f"mcp-{sidecar.name}"[:63].rstrip("-"), sidecar.image) for sidecar in spec.mcp.sidecars),
            ],
            **({"volumes": volumes} if volumes else {}),
        },
    }


def node_of(pod: Mapping[str, Any]) -> str:
    """The node that a pod of `pull_pod` is for, placed or not."""
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    name: str = affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    return name


def pull_secret_name(world: str) -> str:
    """Name of the operator's own pull secret for a world; sandboxes use it, too."""
    return f"{world}-pull"


def pull_secret(
    world: WorldImage, uid: str, docker_config: str, registries: Collection[str], expires_at: datetime
) -> Manifest:
    """The Secret with tokens that expire.

    Args:
        world: The world.
        uid: Its `metadata.uid`.
        docker_config: Registry credentials as Docker's configuration file has them.
        registries: The registries that they are for.
        expires_at: When the first token expires.
    """
    metadata = _metadata(world, uid, pull_secret_name(world.metadata.name), {})
    about = {EXPIRES_ANNOTATION: expires_at.isoformat(), REGISTRIES_ANNOTATION: ",".join(sorted(registries))}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**metadata, "annotations": about},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {DOCKER_CONFIG_KEY: b64encode(docker_config.encode()).decode()},
    }


def _metadata(world: WorldImage, uid: str, name: str, labels: dict[str, str]) -> Manifest:
    namespace = {"namespace": world.metadata.namespace} if world.metadata.namespace else {}
    owners = [owner_reference("WorldImage", world.metadata.name, uid)]
    return {"name": name, **namespace, "labels": {**MANAGED_BY, **labels}, "ownerReferences": owners}


def _container(name: str, image: str) -> Manifest:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["true"],  # an image without it serves as well: it is there before the container fails to start
        "resources": {"requests": dict(_TINY), "limits": dict(_TINY)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _only(node: str) -> Manifest:
    """Node affinity as DaemonSets have it: the scheduler still counts the pod."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
