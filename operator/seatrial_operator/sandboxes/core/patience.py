"""How long things are waited for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things are waited for, in s."""

    lease: float = 120.0
    """A claimed sandbox that is not renewed."""
    prefetch: float = 300.0
    """A word of `Prefetch` that is not renewed."""
    surplus: float = 60.0
    """Unclaimed sandboxes that nobody wants any more."""
    trouble: float = 30.0
    """A failure that needs a person, before claims are answered with it."""
    start: float = 900.0
    """A pod that has a node and is not ready."""
    max_backoff: float = 60.0
    """Between two tries to make pods after many failures."""
