"""What the trial runner hands to the harness alive, past Harbor's JSON configuration.

Harbor makes the agent from a name and JSON. An engine client and a clock are neither, so the runner makes them the
current setting around `Trial.create`, and the agent's constructor takes them from there:

    with HarnessSetting(request, engine, clock).current():
        trial = await Trial.create(config)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from seatrial_api.spec.harness import HarnessSpec, Sampling
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.tito.session import GeneratesTokens


class Assignment(Protocol):
    """What a harness has to know of a trial's request."""

    @property
    def trial_id(self) -> str:
        """Names the trial to the engine."""
        ...

    @property
    def harness(self) -> HarnessSpec:
        """Limits and history."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        ...

    @property
    def max_steps(self) -> int:
        """Turns that the agent may take."""
        ...

    @property
    def sandbox(self) -> SandboxSpec:
        """How it survives the death of its sandbox."""
        ...

    @property
    def policy(self) -> Policy | None:
        """None for the oracle and the no-op."""
        ...


@dataclass(frozen=True)
class HarnessSetting:
    """One trial, seen from its harness."""

    request: Assignment
    engine: GeneratesTokens
    clock: TrialClock
    """Charged time; whoever makes the agent wait for us stops it."""

    @property
    def policy(self) -> Policy:
        """The model.

        Raises:
            ValueError: The request has none: the oracle and the no-op run no harness of ours.
        """
        if self.request.policy is None:
            raise ValueError(f"trial {self.request.trial_id} has no policy")
        return self.request.policy

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the setting that agents are constructed in."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


def current_setting() -> HarnessSetting:
    """The setting of the trial that is being put together.

    Raises:
        LookupError: There is none.
    """
    return _CURRENT.get()


_CURRENT: ContextVar[HarnessSetting] = ContextVar("seatrial_harness_setting")
