"""Registry credentials in the form of a `kubernetes.io/dockerconfigjson` Secret."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import override

from seatrial_api.errors import InvalidInputError
from seatrial_operator.registry.reference import DOCKER_HUB, Reference

_DOCKER_HUB_KEYS = ("index.docker.io", "docker.io", "registry-1.docker.io")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and a password."""

    username: str
    password: str

    @property
    def basic(self) -> str:
        """Value of an `Authorization` header."""
        return f"Basic {self._encoded}"

    @property
    def _encoded(self) -> str:
        return base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    @override
    def __repr__(self) -> str:
        return f"Credentials({self.username!r}, ***)"


def docker_config(by_registry: Mapping[str, Credentials]) -> str:
    """The content of `.dockerconfigjson`, always the same text for the same credentials."""
    auths = {
        registry: {"username": one.username, "password": one.password, "auth": one._encoded}  # noqa: SLF001  same module
        for registry, one in sorted(by_registry.items())
    }
    return json.dumps({"auths": auths}, separators=(",", ":"))


def credentials_in(config: str | bytes, reference: Reference) -> Credentials | None:
    """The credentials for an image, found as kubelets find them: by host, with globs, and by path, the longest first.

    Raises:
        InvalidInputError: the text is no Docker config.
    """
    try:
        auths = json.loads(config)["auths"]
        keys = sorted((key for key in auths if _is_for(key, reference)), key=len, reverse=True)
        return _read(auths[keys[0]]) if keys else None
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise InvalidInputError(
            "the pull secret's .dockerconfigjson is not of the form "
            '{"auths": {"registry": {"username": …, "password": …}}}; make it with `kubectl create secret '
            "docker-registry`"
        ) from error


def _read(entry: Mapping[str, str]) -> Credentials:
    if entry.get("username"):
        return Credentials(entry["username"], entry["password"])
    username, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    return Credentials(username, password)


def _is_for(key: str, reference: Reference) -> bool:
    host, _, path = key.removeprefix("https://").removeprefix("http://").partition("/")
    path = path.removeprefix("v1").removeprefix("v2").strip("/")
    if reference.registry == DOCKER_HUB and host in _DOCKER_HUB_KEYS:
        return True
    labels, wanted = host.split("."), reference.registry.split(".")
    is_host = len(labels) == len(wanted) and all(map(fnmatchcase, wanted, labels))
    return is_host and f"{reference.repository}/".startswith(f"{path}/" if path else "")
