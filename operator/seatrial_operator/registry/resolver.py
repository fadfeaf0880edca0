"""Whom to ask about an image, and with which credentials."""

import aiohttp

from seatrial_operator.registry.client import RegistryClient
from seatrial_operator.registry.credentials import credentials_in
from seatrial_operator.registry.ecr import EcrClient, EcrRegistry
from seatrial_operator.registry.reference import Reference


class Resolver:
    """Digests of images anywhere: on ECR by the operator's own role, unless the user brings a pull secret."""

    def __init__(self, session: aiohttp.ClientSession, ecr: EcrClient, plain_http: tuple[str, ...] = ()) -> None:
        """Make a resolver.

        Args:
            session: Connections; the caller closes it.
            ecr: For images on Amazon ECR.
            plain_http: Registries without TLS, beside those on this machine.
        """
        self._registry = RegistryClient(session, plain_http)
        self._ecr = ecr

    async def digest(self, reference: Reference, docker_config: bytes | None) -> str:
        """The digest that a reference stands for now.

        Args:
            reference: The image.
            docker_config: `.dockerconfigjson` of the user's pull secret, if there is one.

        Raises:
            RegistryError: see its tree.
            InvalidInputError: the pull secret holds no Docker config.
        """
        ecr = EcrRegistry.of(reference)
        if ecr is not None and docker_config is None:
            return await self._ecr.digest(ecr, reference)
        credentials = None if docker_config is None else credentials_in(docker_config, reference)
        return await self._registry.digest(reference, credentials)
