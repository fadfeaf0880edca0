"""What the owner of a sandbox and its keeper say to each other, before the sandbox's sockets take over."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.isolation import Means
from seatrial_sandbox.limits import Limits
from seatrial_sandbox.server_spec import McpServerSpec

SOCKETS = "sockets"
"""Folder in the sandbox's root on the host that holds its sockets."""
SANDBOX_VARIABLE = "SEATRIAL_SANDBOX"
"""Environment variable by which the processes of a plain sandbox are told apart; holds its root."""
COMMANDS = "commands.sock"
"""Socket on which commands are taken."""
PORTS = "ports.sock"
"""Socket on which ports of the sandbox's loopback are given away."""


@dataclass(frozen=True, slots=True)
class KeeperRequest:
    """What the owner of a sandbox asks the zygote for."""

    root: str
    workdir: str
    phase: Phase
    servers: list[McpServerSpec]
    limits: Limits
    env: dict[str, str]
    uid: int | None = None
    """User that an earlier phase had."""

    def to_json(self) -> str:
        """For the way to the zygote."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The request as it was sent."""
        facts: dict[str, Any] = json.loads(text)
        facts["phase"] = Phase(facts["phase"])
        facts["servers"] = [McpServerSpec(**server) for server in facts["servers"]]
        facts["limits"] = Limits(**facts["limits"])
        return cls(**facts)


@dataclass(frozen=True, slots=True)
class SandboxUp:
    """What the keeper tells the owner once all is ready."""

    means: Means
    pid: int
    """The keeper."""
    init_pid: int | None
    """First process of the namespaces, if there are any."""
    uid: int | None
    """User that files in the sandbox belong to; none if that is us."""
