"""What the sandboxes of a world may reach, and who may reach them."""

from seatrial_api.pods import ROLE_LABEL
from seatrial_api.sandboxd_config import DEFAULT_PORT
from seatrial_api.sandboxes import SANDBOX_ROLE, WORLD_LABEL
from seatrial_api.world_image import EgressRule, WorldImage
from seatrial_operator.config import SandboxesConfig
from seatrial_operator.manifests.names import MANAGED_BY, Manifest, owner_reference


def policy_name(world: str) -> str:
    """Name of a world's NetworkPolicy."""
    return f"{world}-sandboxes"


def sandbox_policy(world: WorldImage, uid: str, config: SandboxesConfig) -> Manifest:
    """Deny everything but trial hosts that come to `sandboxd`, and what the world lists; not even DNS.

    Every default is spelled out, so that what the API server stored can be compared with it.

    Args:
        world: The world.
        uid: Its `metadata.uid`.
        config: Settings of all sandboxes.
    """
    name = world.metadata.name
    clients = {"podSelector": {"matchLabels": dict(config.clients)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": policy_name(name),
            "labels": {**MANAGED_BY, WORLD_LABEL: name},
            "ownerReferences": [owner_reference("WorldImage", name, uid)],
        },
        "spec": {
            "podSelector": {"matchLabels": {ROLE_LABEL: SANDBOX_ROLE, WORLD_LABEL: name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [clients], "ports": [{"protocol": "TCP", "port": DEFAULT_PORT}]}],
            **({"egress": [_egress(rule) for rule in world.spec.egress]} if world.spec.egress else {}),
        },
    }


def _egress(rule: EgressRule) -> Manifest:
    ports = [{"protocol": "TCP", "port": port} for port in rule.ports]
    return {"to": [{"ipBlock": {"cidr": rule.cidr}}], **({"ports": ports} if ports else {})}
