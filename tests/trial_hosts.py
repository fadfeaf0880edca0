"""Trial hosts of a test's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.spawn import HostConfig


@asynccontextmanager
async def trial_host(config: HostConfig) -> AsyncIterator[TrialHost]:
    """A host, not started yet, that is stopped when the block ends."""
    host = TrialHost(config)
    try:
        yield host
    finally:
        await host.stop()
