"""What an image reference says: registry, repository, and a tag or a digest."""

import re
from dataclasses import dataclass, replace
from typing import Self, override

DOCKER_HUB = "docker.io"
_DOCKER_HUB_API = "registry-1.docker.io"
_LOOPBACK = re.compile(r"^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?$")


@dataclass(frozen=True, slots=True)
class Reference:
    """One image in one registry, in full: nothing is left to a default."""

    registry: str
    """Host, with its port if it has one."""
    repository: str
    tag: str | None = None
    """Name that may move; empty beside a digest that was given alone."""
    digest: str | None = None
    """`sha256:…`: the content itself."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference as container runtimes do: `python` is `docker.io/library/python:latest`."""
        name, _, digest = text.partition("@")
        head, _, last = name.rpartition("/")
        last, _, tag = last.partition(":")
        path = f"{head}/{last}" if head else last
        first, _, rest = path.partition("/")
        is_host = bool(rest) and ("." in first or ":" in first or first == "localhost")
        registry, repository = (first, rest) if is_host else (DOCKER_HUB, path)
        if registry == DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry, repository, tag or (None if digest else "latest"), digest or None)

    @override
    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"

    @property
    def wanted(self) -> str:
        """What is asked for: the digest if there is one, else the tag."""
        return self.digest or self.tag or "latest"

    @property
    def api_host(self) -> str:
        """Host that serves the registry's API."""
        return _DOCKER_HUB_API if self.registry == DOCKER_HUB else self.registry

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine, where runtimes speak plain HTTP."""
        return _LOOPBACK.match(self.registry) is not None

    def pinned(self, digest: str) -> Self:
        """The same image by its content; the tag is dropped, as it may come to mean something else."""
        return replace(self, tag=None, digest=digest)
