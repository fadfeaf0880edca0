"""One operator at a time: a Lease that is held, or the process ends.

The official client library has a leader election. It waits for a hung API server without a bound while its Lease runs
out, goes on renewing after the work has failed, and never lets go of a Lease; docs/decisions has the page.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.errors import SeatrialError
from seatrial_operator.config import LeaseConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import AlreadyExistsError, KubeError, StaleError
from seatrial_operator.kube.resources import LEASES, Object
from seatrial_operator.kube.times import micro_time, utc_now

log = structlog.get_logger(__name__)


class LeaseLostError(SeatrialError):
    """Another operator may act from now on, so this one must not."""


@dataclass
class Lease:
    """Holds the Lease `config.name` for `identity`.

        run ── take (until nobody else holds it) ──▶ work ∥ renew ──▶ LeaseLostError, or work ends ──▶ let go

    Others' clocks are not trusted: a foreign Lease has run out when it did not change for its duration on our own
    clock. Each write carries the resource version that it was decided on, so that of two takers one wins.
    """

    client: KubeClient
    config: LeaseConfig
    namespace: str
    identity: str
    """Name of this process, unique among operators."""
    clock: Clock = SYSTEM_CLOCK
    _written_at: float | None = None
    """When the newest of our writes that succeeded was begun; none before we held the Lease."""
    _foreign: Object | None = None
    """The Lease as another wrote it last."""
    _foreign_at: float = 0.0
    """When we first met that version."""

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease, then work while holding it.

        Raises:
            LeaseLostError: if it could not be renewed in time; the work was cancelled before another may begin.
        """
        await self._take()
        try:
            async with asyncio.TaskGroup() as tasks:
                renewal = tasks.create_task(self._renew(), name="lease")
                await work()
                renewal.cancel()
        except* LeaseLostError as group:
            raise group.exceptions[0] from None
        finally:
            await self._let_go()

    async def _take(self) -> None:
        is_told = False
        while not await self._try_write():
            if not is_told:
                log.info("waiting for the lease", lease=self.config.name, identity=self.identity)
                is_told = True
            await self.clock.sleep(self.config.retry_seconds)
        log.info("holding the lease", lease=self.config.name, identity=self.identity)

    async def _renew(self) -> None:
        while True:
            await self.clock.sleep(self.config.retry_seconds)
            deadline = Deadline((self._written_at or 0.0) + self.config.renew_seconds, self.clock)
            try:
                async with asyncio.timeout(deadline.remaining):
                    while not await self._try_write():
                        await self.clock.sleep(self.config.retry_seconds)
            except TimeoutError:
                raise self._lost(f"could not be renewed for {self.config.renew_seconds} s") from None

    async def _try_write(self) -> bool:
        """Write ourselves into the Lease, unless another holds it; whether we hold it now.

        Raises:
            LeaseLostError: if we held it and another does now.
        """
        started = self.clock.now()
        try:
            found = await self.client.find(LEASES, self.namespace, self.config.name)
            if found is not None and not self._is_free(found):
                if self._written_at is not None:
                    raise self._lost(f"is held by {_holder(found)}")
                return False
            await self._write(found)
        except (StaleError, AlreadyExistsError):
            return False
        except KubeError as exc:
            log.warning("cannot write the lease", error=str(exc))
            return False
        self._written_at = started
        return True

    async def _write(self, found: Object | None) -> None:
        is_ours = found is not None and _holder(found) == self.identity
        now = micro_time(utc_now())
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.config.duration_seconds,
            "acquireTime": found["spec"]["acquireTime"] if found is not None and is_ours else now,
            "renewTime": now,
            "leaseTransitions": 0 if found is None else _transitions(found) + (not is_ours),
        }
        await self._put(found, spec)

    async def _let_go(self) -> None:
        """Empty the Lease, so that the next holder need not wait for it to run out. A failure costs only that wait."""
        try:
            found = await self.client.find(LEASES, self.namespace, self.config.name)
            if found is not None and _holder(found) == self.identity:
                await self._put(found, {**found["spec"], "holderIdentity": "", "leaseDurationSeconds": 1})
        except KubeError as exc:
            log.warning("cannot let go of the lease", error=str(exc))

    async def _put(self, found: Object | None, spec: Object) -> None:
        metadata: Object = {"name": self.config.name}
        if found is None:
            manifest = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
            await self.client.create(LEASES, self.namespace, manifest)
        else:
            metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
            await self.client.apply(LEASES, self.namespace, {"metadata": metadata, "spec": spec})

    def _is_free(self, found: Object) -> bool:
        if _holder(found) in {"", self.identity}:
            return True
        if self._foreign is None or _version(self._foreign) != _version(found):
            self._foreign, self._foreign_at = found, self.clock.now()
            return False
        return self.clock.now() > self._foreign_at + float(found["spec"].get("leaseDurationSeconds", 0))

    def _lost(self, why: str) -> LeaseLostError:
        return LeaseLostError(f"the Lease {self.namespace}/{self.config.name} {why}; ending, so that one operator acts")


def _holder(lease: Object) -> str:
    return str(lease["spec"].get("holderIdentity") or "")


def _version(lease: Object) -> str:
    return str(lease["metadata"]["resourceVersion"])


def _transitions(lease: Object) -> int:
    return int(lease["spec"].get("leaseTransitions", 0))
