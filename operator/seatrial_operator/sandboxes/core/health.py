"""What keeps sandboxes of a world from being made, and how often that is tried all the same."""

from dataclasses import dataclass

from seatrial_operator.sandboxes.core.failures import Failure, FailureKind
from seatrial_operator.sandboxes.core.patience import Patience


@dataclass
class Trouble:
    """Failures since the last sandbox that came up."""

    failure: Failure
    """The newest."""
    since: float
    """When failures that want the same of a person began."""
    count: int = 0
    """Failures in a row."""
    retry_at: float = 0.0


@dataclass
class Health:
    """Whether sandboxes come up. One that does ends all trouble."""

    patience: Patience
    world_failure: Failure | None = None
    """Why no pod can be made of the world as it is now."""
    trouble: Trouble | None = None

    @property
    def problem(self) -> Failure | None:
        """What keeps sandboxes from being made."""
        return self.world_failure or (self.trouble.failure if self.trouble else None)

    def is_well(self) -> None:
        """A sandbox is ready."""
        self.trouble = None

    def has_room(self) -> None:
        """A pod was made: no quota is in the way."""
        if self._is_quota():
            self.trouble = None

    def may_have_room(self, now: float) -> None:
        """A pod is gone: a quota may let another one in."""
        if self.trouble is not None and self._is_quota():
            self.trouble.retry_at = now

    def notice(self, failure: Failure, now: float) -> None:
        """Something is wrong that may yet come right by itself."""
        if self.trouble is None and failure.kind.needs_a_person:
            self.trouble = Trouble(failure, now)

    def fail(self, failure: Failure, now: float) -> None:
        """A sandbox was not made, or did not come up; the next try waits longer than the one before."""
        former = self.trouble
        is_alike = former is not None and former.failure.kind.needs_a_person is failure.kind.needs_a_person
        count = former.count + 1 if former else 1
        wait = min(self.patience.max_backoff, 2.0 ** min(count - 1, 16))
        self.trouble = Trouble(failure, former.since if former and is_alike else now, count, now + wait)

    def look_at_world(self, now: float) -> None:
        """A world of which no pod can be made is trouble, and one that is mended is none."""
        if self.world_failure is not None:
            if self.trouble is None:
                self.trouble = Trouble(self.world_failure, now)
        elif self.trouble is not None and self.trouble.failure.kind is FailureKind.WORLD:
            self.trouble = None

    def at_once(self, missing: int, num_starting: int, now: float) -> int:
        """How many pods to make: all that are missing; after failures one by one, each after a wait that grows."""
        if self.world_failure is not None:
            return 0
        if self.trouble is None:
            return missing
        return 0 if now < self.trouble.retry_at or num_starting else min(missing, 1)

    def hopeless(self, now: float) -> Failure | None:
        """A failure that a person would have to help, once that has lasted."""
        trouble = self.trouble
        if trouble is None or not trouble.failure.kind.needs_a_person or now < trouble.since + self.patience.trouble:
            return None
        return trouble.failure

    def _is_quota(self) -> bool:
        return self.trouble is not None and self.trouble.failure.kind is FailureKind.QUOTA
