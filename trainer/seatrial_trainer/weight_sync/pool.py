"""What weight synchronisation needs of an `EnginePool`."""

from collections.abc import Sequence
from typing import Protocol

from seatrial_rollout.engine.control import EngineControl, WeightFiles


class Pool(Protocol):
    """Engines that are up, and the version that they serve."""

    @property
    def engines(self) -> Sequence[EngineControl]:
        """Engines that are up."""
        ...

    @property
    def version(self) -> int:
        """Version that was published last."""
        ...

    async def publish(self, version: int, files: WeightFiles | None = None) -> None:
        """Admit requests under this version only, on every engine and on those that replace one."""
        ...
