"""The workers: take what is due, reconcile it, and say when to look again."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_operator.controller.queue import Pacing, WorkQueue
from seatrial_operator.kube.errors import KubeError, StaleError
from seatrial_operator.kube.resources import ObjectKey, Watch
from seatrial_operator.metrics.reconciling import RECONCILE_ERRORS, RECONCILE_QUEUE, RECONCILE_SECONDS

log = structlog.get_logger(__name__)


class Reconciler(Protocol):
    """Brings the objects of one kind to what their specs ask for."""

    @property
    def kind(self) -> str:
        """The kind of its keys."""
        ...

    @property
    def watches(self) -> Sequence[Watch]:
        """What it wants to hear of."""
        ...

    async def keys(self) -> list[ObjectKey]:
        """Every object of the kind that there is now."""
        ...

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Look at one object and do what is to be done now.

        It is called for any reason and for none, and never twice at once for one key.

        Returns:
            Seconds until the next look if no event comes before; none if the object is gone.
        """
        ...


class Controller:
    """All loops of the operator below the watches.

        watch handlers ─ enqueue ─▶ ┌─────────┐  ── dispatcher ──▶ one task per key in work, at most `workers`
        resync, every few minutes ─▶ │  queue  │ ◀───────────────── the next look, sooner after a failure
                                     └─────────┘

    The loops end with the task that runs them; keys in work are cancelled, which any later look makes good.
    """

    def __init__(
        self,
        reconcilers: Sequence[Reconciler],
        *,
        workers: int,
        resync_seconds: float,
        pacing: Pacing | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._reconcilers = {reconciler.kind: reconciler for reconciler in reconcilers}
        self._resync_seconds = resync_seconds
        self._clock = clock
        self._queue = WorkQueue(pacing or Pacing())
        self._slots = asyncio.Semaphore(workers)
        self._wake = asyncio.Event()

    def enqueue(self, key: ObjectKey) -> None:
        """Something happened that may concern `key`."""
        self._add(key, 0.0)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resync(), name="resync")
            while True:
                key = await self._next()
                await self._slots.acquire()
                tasks.create_task(self._work(key), name=str(key))

    def _add(self, key: ObjectKey, after_seconds: float) -> None:
        if key.kind in self._reconcilers:
            self._queue.add(key, self._clock.now(), after_seconds)
            self._wake.set()

    async def _next(self) -> ObjectKey:
        while True:
            self._wake.clear()
            key = self._queue.take(self._clock.now())
            RECONCILE_QUEUE.set(self._queue.num_due(self._clock.now()))
            if key is not None:
                return key
            await self._wait()

    async def _wait(self) -> None:
        """Until a key is asked for, or the earliest one falls due."""
        due = self._queue.next_due()
        if due is None:
            await self._wake.wait()
            return
        async with asyncio.TaskGroup() as tasks:
            timer = tasks.create_task(self._clock.sleep(due - self._clock.now()))
            timer.add_done_callback(lambda _: self._wake.set())
            await self._wake.wait()
            timer.cancel()

    async def _work(self, key: ObjectKey) -> None:
        started = self._clock.now()
        try:
            with structlog.contextvars.bound_contextvars(kind=key.kind, namespace=key.namespace, name=key.name):
                await self._reconcile(key)
        finally:
            RECONCILE_SECONDS.labels(kind=key.kind).observe(self._clock.now() - started)
            self._slots.release()
            self._wake.set()

    async def _reconcile(self, key: ObjectKey) -> None:
        try:
            after = await self._reconcilers[key.kind].reconcile(key)
        except StaleError as exc:
            log.debug("the object changed meanwhile; looking again", error=str(exc))
            self._queue.done(key, self._clock.now(), 0.0)
        except Exception as exc:
            wait = self._queue.failed(key, self._clock.now())
            RECONCILE_ERRORS.labels(kind=key.kind).inc()
            is_told = isinstance(exc, KubeError)
            log.warning("cannot reconcile", error=str(exc), retry_seconds=wait, exc_info=None if is_told else exc)
        else:
            if after is None:
                self._queue.forget(key, self._clock.now())
            else:
                self._queue.done(key, self._clock.now(), after)

    async def _resync(self) -> None:
        """Ask for every object now and then: what a watch lost is found here."""
        while True:
            for reconciler in self._reconcilers.values():
                try:
                    for key in await reconciler.keys():
                        self._add(key, 0.0)
                except KubeError as exc:
                    log.warning("cannot list objects; trying again later", kind=reconciler.kind, error=str(exc))
            await self._clock.sleep(self._resync_seconds)
