"""Keys in turn, each within its limits: pure, the time is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.judge import JudgeKeyLimits, JudgeModel, JudgeProvider, JudgeSpec
from seatrial_rollout.judge.limits import Breaker, Window


@dataclass(slots=True)
class Key:
    """One key of one provider."""

    provider: JudgeProvider
    number: int
    """Its place among the provider's keys."""
    secret: str = field(repr=False)
    provider_breaker: Breaker
    """Shared by the provider's keys: opens when the service fails."""
    breaker: Breaker = field(default_factory=lambda: Breaker(first_seconds=60.0, max_seconds=3600.0))
    """Opens when the provider refuses the key."""
    resting_until: float = 0.0
    """As the provider has asked for."""
    problem: str = ""
    """What went wrong last, until something goes right."""
    under_way: int = 0
    models: Mapping[str, JudgeModel] = field(init=False, repr=False)
    """What it can ask for, by the names that tasks use."""
    _requests: Window = field(init=False)
    _tokens: Window | None = field(init=False)

    def __post_init__(self) -> None:
        limits = self.limits
        self.models = {model.name: model for model in self.provider.models}
        self._requests = Window(limits.requests, limits.window_seconds)
        self._tokens = None if limits.tokens is None else Window(limits.tokens, limits.window_seconds)

    @property
    def label(self) -> str:
        """Its name in logs."""
        return f"{self.provider.name}/{self.number}"

    @property
    def limits(self) -> JudgeKeyLimits:
        """What it may ask for."""
        return self.provider.key_limits

    def redact(self, said: str) -> str:
        """A provider's words without the key, should it have repeated it."""
        return said.replace(self.secret, "***")

    def ready_at(self, tokens: int, now: float) -> float | None:
        """When it can send a request of so many tokens; None if something under way has to end first."""
        if self.under_way >= self.limits.concurrency:
            return None
        times = [
            self._requests.ready_at(1, now),
            now if self._tokens is None else self._tokens.ready_at(tokens, now),
            self.provider_breaker.ready_at(now),
            self.breaker.ready_at(now),
            self.resting_until,
        ]
        known = [time for time in times if time is not None]
        return max(now, *known) if len(known) == len(times) else None

    def begin(self, tokens: int) -> None:
        """A request goes out."""
        self.under_way += 1
        self._requests.begin(1)
        self.breaker.begin()
        self.provider_breaker.begin()
        if self._tokens is not None:
            self._tokens.begin(tokens)

    def end(self, tokens: int, actual: int, now: float) -> None:
        """It came back, however: with so many tokens really used, or none."""
        self.under_way -= 1
        self._requests.end(1, 1, now)
        if self._tokens is not None:
            self._tokens.end(tokens, actual, now)


class Ring:
    """The keys that serve one model, used in turn."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys = keys
        self._next = 0

    def take(self, tokens: int, now: float) -> Key | None:
        """The next key that can send a request of so many tokens now; it is begun."""
        for offset in range(len(self.keys)):
            index = (self._next + offset) % len(self.keys)
            if self.keys[index].ready_at(tokens, now) == now:
                self._next = index + 1
                self.keys[index].begin(tokens)
                return self.keys[index]
        return None

    def ready_at(self, tokens: int, now: float) -> float | None:
        """When the first key can; None if something under way has to end first."""
        times = [time for key in self.keys if (time := key.ready_at(tokens, now)) is not None]
        return min(times, default=None)


def read_keys(spec: JudgeSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """The keys of all providers, by their variables.

    Raises:
        InvalidInputError: with the variables that are not set.
    """
    variables = {key.variable for provider in spec.providers for key in provider.keys}
    if missing := sorted(name for name in variables if not environment.get(name)):
        raise InvalidInputError(f"judge keys are missing: set {', '.join(missing)} in the driver's environment")
    return {name: environment[name] for name in sorted(variables)}


def make_rings(spec: JudgeSpec, keys: Mapping[str, str]) -> dict[str, Ring]:
    """A ring for each model.

    Args:
        spec: The providers.
        keys: Their keys, as `read_keys` gives them.
    """
    made: list[Key] = []
    for provider in spec.providers:
        breaker = Breaker()
        made += [Key(provider, number, keys[key.variable], breaker) for number, key in enumerate(provider.keys)]
    names = {name for key in made for name in key.models}
    return {name: Ring([key for key in made if name in key.models]) for name in sorted(names)}
