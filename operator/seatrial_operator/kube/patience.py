"""Waiting for an API server that does not answer yet, or not as it has to."""

from collections.abc import Awaitable, Callable

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_operator.kube.errors import KubeError

log = structlog.get_logger(__name__)

_FIRST_WAIT_SECONDS = 0.5
_MAX_WAIT_SECONDS = 15.0


async def patiently[T](
    attempt: Callable[[], Awaitable[T]], tell: Callable[[str], None], clock: Clock = SYSTEM_CLOCK
) -> T:
    """What `attempt` comes to; while the cluster is not ready for it, it is made again, less and less often.

    A process that waits for its cluster is better than one that ends: it is there at once when the cluster is, and its
    log says all the time what is missing.

    Args:
        attempt: Asks the API server, and may do so again and again.
        tell: Takes what is waited for, each time.
        clock: Time.
    """
    wait = _FIRST_WAIT_SECONDS
    while True:
        try:
            return await attempt()
        except KubeError as exc:
            tell(str(exc))
            log.warning("waiting for the cluster", error=str(exc), retry_seconds=wait)
            await clock.sleep(wait)
            wait = min(_MAX_WAIT_SECONDS, wait * 2)
