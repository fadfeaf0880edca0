"""Where remote sandboxes come from."""

from typing import Protocol

from seatrial_api.sandbox_token import Phase


class ClaimedSandbox(Protocol):
    """A sandbox that a trial holds until it is released."""

    @property
    def address(self) -> str:
        """Where its daemon answers: `address:port`, or `unix:` and a path."""
        ...

    def token(self, phase: Phase) -> str:
        """A token of a phase that still holds for a while; whoever gave the sandbox renews it.

        Raises:
            SandboxDiedError: If the sandbox is known to be lost.
        """
        ...

    async def why_lost(self) -> str:
        """Why it is gone, if whoever gave it tells so now or within some seconds; empty if not."""
        ...


class SandboxSource(Protocol):
    """Gives sandboxes to trials."""

    async def claim(self, world: str, trial_id: str) -> ClaimedSandbox:
        """Take a sandbox of a world for a trial; asked again for the same trial, answers the same one.

        Raises:
            SandboxStartError: If there is none to be had.
        """
        ...

    async def release(self, sandbox: ClaimedSandbox) -> None:
        """Give a sandbox back; it is never used again."""
        ...
