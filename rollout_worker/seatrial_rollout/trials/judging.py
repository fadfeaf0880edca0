"""Opens the judge to a trial's verifier, when verification begins and not before."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from seatrial_rollout.environment.tunnel import Relay
from seatrial_rollout.judge.client import Verification
from seatrial_rollout.judge.tokens import JudgeAccess


@runtime_checkable
class ServesPorts(Protocol):
    """An environment without network that can have us serve a port on its own loopback."""

    def serve_port(
        self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> AbstractAsyncContextManager[int]:
        """Serve a port while the block runs; yields its number."""
        ...


@dataclass(frozen=True, slots=True)
class JudgeSetting:
    """The judge of the trial that is run, for a verifier that Harbor makes from a name."""

    access: JudgeAccess
    trial_id: str
    seconds: float
    """Time of the verifier."""

    def begin(self) -> Verification:
        """Begin the verification now."""
        return Verification.begin(self.access, self.trial_id, self.seconds)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the setting of every verifier in the block."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


def current_judge() -> JudgeSetting | None:
    """The judge of the trial that is run; none if the run has none."""
    return _CURRENT.get()


@asynccontextmanager
async def judge_environment(environment: Any) -> AsyncIterator[dict[str, str]]:
    """Environment variables by which a verifier's script reaches the judge; none if the run has no judge.

    Our sandboxes have no network: they get a port of their own that leads to the gateway while the block runs. Any
    other uses its network. When the block ends without error, every question must have been answered.

    Args:
        environment: Harbor's environment, in phase Verify.

    Raises:
        NoVerdictError: if a question of the script was not answered.
    """
    setting = current_judge()
    if setting is None:
        yield {}
        return
    if not isinstance(environment, ServesPorts):
        verification = setting.begin()
        yield verification.environment(setting.access.url)
        await verification.check()
        return
    relay = Relay(setting.access.url)
    async with environment.serve_port(relay.carry) as port:
        verification = setting.begin()
        yield verification.environment(f"http://127.0.0.1:{port}")
        if relay.num_connections:
            await verification.check()


_CURRENT: ContextVar[JudgeSetting | None] = ContextVar("seatrial_judge_setting", default=None)
