"""What a registry may answer, by what the caller does next.

RegistryError
├── ImageNotFoundError          the user corrects the reference, or pushes the image
├── UnauthorizedError           the user corrects credentials or rights
└── RegistryUnavailableError    the same look-up may succeed later
"""

from seatrial_api.errors import SeatrialError, TransientError


class RegistryError(SeatrialError):
    """Root of the tree."""


class ImageNotFoundError(RegistryError):
    """The registry has no such image."""

    def __init__(self, *, image: str, detail: str = "") -> None:
        because = f" ({detail})" if detail else ""
        super().__init__(f"the registry has no image {image}{because}; push it, or correct the reference")


class UnauthorizedError(RegistryError):
    """The registry does not let us read the image."""

    def __init__(self, *, image: str, detail: str) -> None:
        super().__init__(f"the registry refuses access to {image}: {detail}")


class RegistryUnavailableError(RegistryError, TransientError):
    """The registry cannot be reached, fails, or asks for patience."""

    def __init__(self, *, image: str, detail: str, retry_after_seconds: float | None = None) -> None:
        self.retry_after_seconds = retry_after_seconds
        """What the registry asked for, if it did."""
        super().__init__(f"the registry did not answer for {image}: {detail}")
