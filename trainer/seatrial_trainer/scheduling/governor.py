"""Follows the engines: turns their load into the dispatcher's limit, and publishes the ceilings."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from seatrial_api.base import Auto
from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.errors import SeatrialError
from seatrial_trainer.scheduling.concurrency import Aimd, Ceilings, EngineLoad
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher

log = structlog.get_logger(__name__)

type ReadLoad = Callable[[], Awaitable[EngineLoad]]


class ConcurrencyGovernor:
    """Sets how many trials may be in flight: a fixed number, or what the engines bear. Which of them may change.

    `Auto` starts at the lowest ceiling and then follows KV usage and preemptions; of the ceilings only those that are
    exact bind it later on, because the engines themselves tell when the estimated one was wrong.
    """

    def __init__(
        self,
        dispatcher: TrialDispatcher,
        read_load: ReadLoad,
        *,
        concurrency: Callable[[], Auto | int],
        ceilings: Ceilings,
        interval_seconds: float = 5.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Set the first limit.

        Args:
            dispatcher: Whose limit is set.
            read_load: Asks the engines.
            concurrency: Tells `spec.async.concurrency` as of now; asked at every look.
            ceilings: As known before the first trial; `systems` from an expected trajectory length.
            interval_seconds: Time between looks.
            clock: Time.
        """
        self._dispatcher = dispatcher
        self._read_load = read_load
        self._concurrency = concurrency
        self._interval_seconds = interval_seconds
        self._clock = clock
        self.ceilings = ceilings
        """Ceilings by kind as of the last look."""
        wanted = concurrency()
        first = ceilings.lowest if isinstance(wanted, str) else wanted
        self._controller = Aimd(limit=first)
        dispatcher.limit = first

    async def run(self) -> None:
        """Look and set, for ever; to be spawned in the dispatcher."""
        while True:
            await self._clock.sleep(self._interval_seconds)
            wanted = self._concurrency()
            if not isinstance(wanted, str):
                self._set(replace(self._controller, limit=wanted))
            try:
                async with asyncio.timeout(self._interval_seconds):
                    load = await self._read_load()
            except (SeatrialError, OSError) as error:  # TimeoutError is an OSError
                log.warning("engines did not tell their load; concurrency stays", error=str(error))
                continue
            self._follow(load)

    def _follow(self, load: EngineLoad) -> None:
        mean_tokens = self._dispatcher.lengths.mean_tokens(self._clock.now())
        if mean_tokens:
            systems = max(1, int(load.kv_capacity_tokens / mean_tokens))
            self.ceilings = Ceilings(self.ceilings.algorithmic, systems, self.ceilings.places)
        if not isinstance(self._concurrency(), str):
            return
        exact = Ceilings(self.ceilings.algorithmic, places=self.ceilings.places)
        self._set(self._controller.follow(load, self._dispatcher.num_in_flight, exact.lowest))

    def _set(self, controller: Aimd) -> None:
        before, self._controller = self._controller.limit, controller
        if controller.limit != before:
            log.debug("concurrency changed", limit=controller.limit, before=before)
            self._dispatcher.limit = controller.limit
