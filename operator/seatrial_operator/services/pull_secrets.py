"""Pull secrets for Amazon ECR, whose tokens live for twelve hours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from seatrial_api.world_image import WorldImage
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.resources import SECRETS, Object, ObjectKey
from seatrial_operator.manifests.worlds import (
    EXPIRES_ANNOTATION,
    REGISTRIES_ANNOTATION,
    images_of,
    pull_secret,
    pull_secret_name,
)
from seatrial_operator.plan.worlds import is_renewal_due, renewal_time
from seatrial_operator.registry.credentials import docker_config
from seatrial_operator.registry.ecr import EcrClient, EcrRegistry, EcrToken
from seatrial_operator.registry.reference import Reference
from seatrial_operator.services.typed import Typed, is_owned

log = structlog.get_logger(__name__)


@dataclass
class PullSecrets:
    """Keeps a Secret fresh for every world with an image on ECR; one token serves all worlds of a registry."""

    client: KubeClient
    ecr: EcrClient
    _tokens: dict[str, EcrToken] = field(default_factory=dict)

    async def renew(self, key: ObjectKey, world: Typed[WorldImage], now: datetime) -> datetime | None:
        """Renew a world's pull secret if it is due, and tell when it is due next; none if the world needs none.

        Raises:
            RegistryError: ECR gives no token.
            KubeError: as the tree says.
        """
        wanted = ecr_registries(world.item)
        if not wanted:
            return None
        name = pull_secret_name(key.name)
        secret = await self.client.find(SECRETS, key.namespace, name)
        if secret is not None and not is_owned(secret, world.uid):
            log.warning("a Secret of the pull secret's name is not ours and is left alone", secret=name)
            return None
        expires_at, registries = _about(secret)
        if expires_at is not None and not is_renewal_due(expires_at, registries, wanted, now):
            return renewal_time(expires_at)
        tokens = {host: await self._token(registry, now) for host, registry in wanted.items()}
        config = docker_config({host: token.credentials for host, token in tokens.items()})
        expires_at = min(token.expires_at for token in tokens.values())
        manifest = pull_secret(world.item, world.uid, config, wanted, expires_at)
        await self.client.apply(SECRETS, key.namespace, manifest)
        log.info("renewed a pull secret", secret=name, expires_at=expires_at.isoformat())
        return renewal_time(expires_at)

    async def _token(self, registry: EcrRegistry, now: datetime) -> EcrToken:
        token = self._tokens.get(registry.host)
        if token is None or now >= renewal_time(token.expires_at):
            token = self._tokens[registry.host] = await self.ecr.token(registry)
        return token


def ecr_registries(world: WorldImage) -> Mapping[str, EcrRegistry]:
    """The ECR registries that a world's images lie on, by host; none if the user brings a pull secret."""
    if world.spec.pull_secret is not None:
        return {}
    found = (EcrRegistry.of(Reference.parse(image)) for image in images_of(world.spec))
    return {registry.host: registry for registry in found if registry is not None}


def _about(secret: Object | None) -> tuple[datetime | None, list[str]]:
    """When a pull secret expires, and the registries that it is for."""
    annotations = (secret or {}).get("metadata", {}).get("annotations") or {}
    try:
        expires_at = datetime.fromisoformat(annotations[EXPIRES_ANNOTATION])
    except (KeyError, ValueError):
        return None, []
    return expires_at, annotations.get(REGISTRIES_ANNOTATION, "").split(",")
