"""The run's gateway in a process of its own, and the handle by which the driver keeps it alive."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.exceptions import RayError

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.errors import SeatrialError, WaitTimeoutError
from seatrial_api.spec.judge import JudgeSpec
from seatrial_rollout.judge.audit import AuditLog
from seatrial_rollout.judge.gateway import Gateway
from seatrial_rollout.judge.keys import make_rings
from seatrial_rollout.judge.tokens import JudgeAccess, SigningKey

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_RETRY_SECONDS = 2.0

log = structlog.get_logger(__name__)


class JudgeActor:
    """A gateway on the node where Ray puts it."""

    def __init__(self, spec: JudgeSpec, run: str, public_pem: str, audit: Path) -> None:
        self._spec = spec
        self._run = run
        self._public_pem = public_pem
        self._audit = AuditLog(audit)
        self._gateway: Gateway | None = None

    async def start(self, keys: Mapping[str, str], port: int) -> str:
        """Listen on the node's address, and return the URL.

        Args:
            keys: By their variables; they come with this call, because Ray remembers what actors are made with.
            port: Where to listen; 0 for any.
        """
        rings = make_rings(self._spec, keys)
        self._gateway = Gateway(self._spec, rings, run=self._run, public_pem=self._public_pem, audit=self._audit)
        host = ray.util.get_node_ip_address()
        return f"http://{host}:{await self._gateway.start(host, port)}"

    async def dollars(self) -> float:
        """What the run has spent on it, in earlier attempts too as far as the audit log is there."""
        return 0.0 if self._gateway is None else self._gateway.used.dollars

    async def run(self) -> None:
        """Wait for the end of the process."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Stop listening."""
        if self._gateway is not None:
            await self._gateway.stop()


class JudgeHost:
    """The run's judge as the driver sees it.

    A gateway whose process dies is replaced, at the same address if that is still free, and takes the same tokens;
    what was used up is read from the audit log.
    """

    def __init__(
        self,
        spec: JudgeSpec,
        run: str,
        keys: Mapping[str, str],
        audit: Path,
        actor_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Plan a gateway; nothing is started.

        Args:
            spec: Models, limits and budgets.
            run: The run's name.
            keys: By their variables.
            audit: The audit log.
            actor_options: Ray's options: resources, scheduling strategy.
        """
        self._spec = spec
        self._run_name = run
        self._keys = keys
        self._audit = audit
        self._actor_options = {"num_cpus": 0, **(actor_options or {}), "max_concurrency": 64}
        self._signing_key = SigningKey.generate()
        self._actor: Any = None
        self._url = ""
        self._port = 0
        """Where a replacement is to listen; 0 for anywhere."""

    @property
    def access(self) -> JudgeAccess:
        """What a trial's process needs."""
        spec = self._spec
        return JudgeAccess(self._run_name, self._url, self._signing_key, spec.model, spec.votes, spec.trial_budget)

    async def start(self) -> None:
        """Start the gateway and wait until it listens.

        Raises:
            WaitTimeoutError: if it does not in time.
            RayError: if it cannot.
        """
        self._actor = (
            ray.remote(JudgeActor)
            .options(**self._actor_options)
            .remote(self._spec, self._run_name, self._signing_key.public_pem, self._audit)
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                self._url = await self._actor.start.remote(self._keys, self._port)
        except TimeoutError:
            raise WaitTimeoutError(waiting_for="the judge's gateway", seconds=_START_SECONDS) from None
        self._port = int(self._url.rpartition(":")[2])
        log.info("the judge's gateway is up", url=self._url)

    async def dollars(self) -> float | None:
        """What the run has spent on it; none if it does not tell just now."""
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                spent: float = await self._actor.dollars.remote()
                return spent
        return None

    async def run(self) -> None:
        """Replace the gateway whenever its process dies; ends only by cancellation."""
        while True:
            try:
                await self._actor.run.remote()
            except RayError as error:
                log.warning("the judge's gateway died and is replaced", error=str(error))
            await self._replace()

    async def stop(self) -> None:
        """End the gateway."""
        actor, self._actor = self._actor, None
        if actor is None:
            return
        with contextlib.suppress(RayError, TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await actor.stop.remote()
        ray.kill(actor)

    async def _replace(self) -> None:
        while True:
            with contextlib.suppress(RayError):
                ray.kill(self._actor)
            try:
                await self.start()
            except (RayError, SeatrialError) as error:
                log.warning("the judge's gateway does not start; trying again", error=str(error))
                self._port = 0  # somebody else may have taken it
                await SYSTEM_CLOCK.sleep(_RETRY_SECONDS)
            else:
                return
