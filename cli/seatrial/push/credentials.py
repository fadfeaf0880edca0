"""Credentials for a registry as Docker's tools find them: helpers first, then what `docker login` stored."""

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from seatrial_api.errors import InvalidInputError
from seatrial_operator.registry.credentials import Credentials, credentials_in
from seatrial_operator.registry.ecr import EcrClient, EcrRegistry
from seatrial_operator.registry.errors import RegistryError
from seatrial_operator.registry.reference import DOCKER_HUB, Reference

_HELPER_SECONDS = 60
_TOKEN_USER = "<token>"  # noqa: S105  what helpers say in place of a name
_DOCKER_HUB_SERVER = "https://index.docker.io/v1/"


async def find_credentials(reference: Reference, environment: Mapping[str, str] = os.environ) -> Credentials | None:
    """What Docker's configuration holds for an image's registry; for ECR else a token of the AWS credentials at hand.

    Raises:
        InvalidInputError: if the configuration, or what it names, cannot be used.
    """
    path = Path(environment.get("DOCKER_CONFIG") or Path.home() / ".docker", "config.json")
    found = await asyncio.to_thread(_configured, path, reference)
    ecr = EcrRegistry.of(reference)
    if found or ecr is None:
        return found
    try:
        return (await EcrClient().token(ecr)).credentials
    except RegistryError as error:
        raise InvalidInputError(
            f"neither {path} nor AWS has credentials for {reference.registry}: {error}; set AWS_PROFILE, or give"
            " --username AWS --password-stdin from `aws ecr get-login-password`"
        ) from error


def _configured(path: Path, reference: Reference) -> Credentials | None:
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        helper = (config.get("credHelpers") or {}).get(reference.registry) or config.get("credsStore")
        auths = {key: entry for key, entry in (config.get("auths") or {}).items() if entry}
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"{path} is no Docker configuration: {error}") from error
    from_helper = _ask(helper, reference) if helper else None
    return from_helper or credentials_in(json.dumps({"auths": auths}), reference)


def _ask(helper: str, reference: Reference) -> Credentials | None:
    """What a credential helper answers; none if it knows nothing of the registry."""
    server = _DOCKER_HUB_SERVER if reference.registry == DOCKER_HUB else reference.registry
    command = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [command, "get"], input=server, capture_output=True, text=True, timeout=_HELPER_SECONDS, check=False
        )
        if done.returncode and "not found" in done.stdout:
            return None
        if done.returncode:
            told = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
            raise InvalidInputError(f"{command} gives no credentials for {server}: {told}")
        answer = json.loads(done.stdout)
        credentials = Credentials(answer["Username"], answer["Secret"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"{command}, which Docker's configuration names, cannot be used: {error}") from error
    if credentials.username == _TOKEN_USER:
        raise InvalidInputError(
            f"{command} holds an identity token for {server}, which is not spoken here; give --username and"
            " --password-stdin"
        )
    return credentials
