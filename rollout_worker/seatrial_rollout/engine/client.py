"""How a trial talks to its engines."""

import socket
from dataclasses import replace
from typing import Self

import aiohttp

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_rollout.engine.errors import EngineError, RequestRefusedError
from seatrial_rollout.engine.generation import EngineAddress, Generation, GenerationRequest
from seatrial_rollout.engine.wire import decode_generation, encode

_CONNECT_SECONDS = 10.0
_FIRST_BACK_OFF_SECONDS = 0.1
_MAX_BACK_OFF_SECONDS = 5.0
_REFUSED = (400, 401, 404, 413, 422)


class EngineClient:
    """Generates on the first engine that can, in the order given, until a deadline.

    One client per trial, or one for many trials that share an order. Close it, or use it in `async with`.
    """

    def __init__(self, addresses: list[EngineAddress], *, timeout_seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        """Make a client.

        Args:
            addresses: The assigned engine first, then those to fall back to.
            timeout_seconds: For one generation, over all engines and attempts.
            clock: The time.
        """
        self._addresses = addresses
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Continue a token prompt.

        Time spent on engines that failed counts as waited: the answer holds nothing of it.

        Raises:
            RequestRefusedError: the request itself is at fault.
            EngineError: no engine could do it before the deadline.
        """
        body = encode(request)
        started = self._clock.now()
        deadline = Deadline.after(self._timeout_seconds, self._clock)
        back_off = _FIRST_BACK_OFF_SECONDS
        failures: dict[str, str] = {}
        while self._addresses:
            for address in self._addresses:
                attempted = self._clock.now()
                try:
                    generation = await self._post(address, body, deadline)
                except _AttemptError as error:
                    failures[address.engine_id] = str(error)
                    continue
                return replace(generation, waited_seconds=generation.waited_seconds + attempted - started)
            if deadline.remaining <= back_off:
                break
            await self._clock.sleep(back_off)
            back_off = min(2 * back_off, _MAX_BACK_OFF_SECONDS)
        tried = "; ".join(f"{engine}: {failure}" for engine, failure in failures.items()) or "there is no engine"
        raise EngineError(f"no engine could generate within {self._timeout_seconds:.0f} s ({tried})")

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, address: EngineAddress, body: bytes, deadline: Deadline) -> Generation:
        headers = {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=max(deadline.remaining, 0.001), sock_connect=_CONNECT_SECONDS)
        url = f"{address.url}/generate"
        try:
            async with self._open().post(url, data=body, headers=headers, timeout=timeout) as response:
                answer = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _AttemptError(str(error) or type(error).__name__) from error
        if response.status == 200:
            return decode_generation(answer)
        detail = answer.decode(errors="replace")
        if response.status in _REFUSED:
            raise RequestRefusedError(engine_id=address.engine_id, status=response.status, detail=detail)
        if response.status == 502:  # it brought vLLM down again and again: not on to the next engine with it
            raise EngineError(f"engine {address.engine_id}: {detail}")
        raise _AttemptError(f"HTTP {response.status}: {detail[:200]}")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # aiohttp's own keep-alive of idle connections is shorter than the gateway's, so none is used half closed.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=_keep_alive_socket)
            )
        return self._session


class _AttemptError(Exception):
    """One engine could not do it; another may."""


def _keep_alive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices within half a minute that the other node is gone, however long a generation takes."""
    family, kind, protocol, _, _ = address
    connection = socket.socket(family=family, type=kind, proto=protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return connection
