"""What the run has used up so far, over all its attempts, and what that costs."""

import asyncio
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import structlog

from seatrial_api.ceilings import Usage, dollars
from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.spec.operations import CostSpec
from seatrial_trainer.storage.atomic import write_atomic
from seatrial_trainer.storage.files import DISK, Files

log = structlog.get_logger(__name__)

_KEEP_SECONDS = 30.0


@dataclass
class Spending:
    """Node hours, tokens and the judge's bill, over this attempt and those before, which the run's folder remembers.

    Node hours are counted from the driver's start: what nodes cost while they pull images is not in them. An attempt
    that is killed loses what it used after it wrote the last time, half a minute at most.
    """

    prices: CostSpec = field(default_factory=CostSpec)
    nodes: int = 1
    """Nodes that engines and training hold."""
    clock: Clock = SYSTEM_CLOCK
    _used: Usage = field(default_factory=Usage)
    """All but the node hours of this attempt."""
    _judge_told: float = 0.0
    """What the judge said last that it has spent."""
    _file: Path | None = None
    _files: Files = DISK

    def __post_init__(self) -> None:
        self._started_at = self.clock.now()

    @property
    def usage(self) -> Usage:
        """What was used up to now."""
        hours = (self.clock.now() - self._started_at) / 3600
        return self._used + Usage(node_hours=self.nodes * hours)

    @property
    def dollars(self) -> float:
        """What that costs."""
        return dollars(self.usage, self.prices)

    @property
    def has_prices(self) -> bool:
        """Whether anything costs something."""
        return self.prices != CostSpec() or self._used.judge_dollars > 0

    def add(self, used: Usage) -> None:
        """Something was used up."""
        self._used += used

    def judged(self, dollars: float) -> None:
        """The judge tells what it has spent so far; with less than before, its log is gone and it began anew."""
        self.add(Usage(judge_dollars=dollars - self._judge_told if dollars >= self._judge_told else dollars))
        self._judge_told = dollars

    def go_on(self, file: Path, files: Files = DISK) -> None:
        """Count what earlier attempts wrote there as well, and write there from now on.

        Args:
            file: Where it is written.
            files: Makes it durable, behind the caller's back.
        """
        self._file, self._files = file, files
        try:
            before = Usage(**json.loads(file.read_bytes()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as exc:
            log.warning("what earlier attempts used up is not known; their cost is left out", error=str(exc))
            return
        self.add(before)
        self._judge_told = before.judge_dollars

    def keep(self) -> None:
        """Write what was used up to now, if it is known where to. A full disk is told of: it is no fault of the run."""
        if self._file is None:
            return
        try:
            write_atomic(self._file, json.dumps(asdict(self.usage)).encode())
            self._files.keep_later(self._file)
        except OSError as exc:
            log.warning("cannot write what the run has used up", error=str(exc))

    async def keep_on(self) -> None:
        """Write it again and again, until cancelled."""
        while True:
            await self.clock.sleep(_KEEP_SECONDS)
            await asyncio.to_thread(self.keep)
