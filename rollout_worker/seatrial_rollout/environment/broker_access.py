"""How a pod that runs trials reaches the broker, and as whom; imports nothing that is slow."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seatrial_api.errors import InvalidInputError
from seatrial_api.sandboxes import BROKER_TOKEN_FILE, BROKER_TOKEN_VARIABLE, BROKER_VARIABLE, RUN_VARIABLE
from seatrial_sandbox.errors import SandboxStartError


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """Where the broker answers, and what a caller shows."""

    address: str
    """`host:port`."""
    run: str
    """Name of the RLRun on whose account sandboxes are claimed."""
    token_file: Path = Path(BROKER_TOKEN_FILE)
    """The pod's token; it is read for every call, as it is renewed in place."""

    @classmethod
    def of_this_pod(cls, environment: Mapping[str, str] = os.environ) -> "BrokerAccess":
        """As the operator told the pod.

        Raises:
            InvalidInputError: If it did not.
        """
        address, run = environment.get(BROKER_VARIABLE), environment.get(RUN_VARIABLE)
        if not address or not run:
            raise InvalidInputError(
                f"provider kubernetes needs a pod that the operator made, with {BROKER_VARIABLE} and {RUN_VARIABLE} in"
                " its environment; choose local or harbor:<environment> here"
            )
        return cls(address, run, Path(environment.get(BROKER_TOKEN_VARIABLE, BROKER_TOKEN_FILE)))

    def token(self) -> str:
        """The token as it is now.

        Raises:
            SandboxStartError: If it cannot be read.
        """
        try:
            return self.token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SandboxStartError(f"cannot read the token for the broker: {error}") from error
