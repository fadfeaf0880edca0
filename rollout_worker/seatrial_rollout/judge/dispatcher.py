"""Sends questions to providers: the next key that may, again if it fails, until there is an answer or no time."""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.spec.judge import JudgeRetries
from seatrial_rollout.judge import wire
from seatrial_rollout.judge.budget import Usage
from seatrial_rollout.judge.errors import NoVerdictError, RefusedError
from seatrial_rollout.judge.keys import Key, Ring
from seatrial_rollout.judge.wire import Answer

_BROKEN = (aiohttp.ClientError, TimeoutError, ConnectionError, wire.WireError)
_MAX_PAUSE_SECONDS = 3600.0
_DEFAULT_PAUSE_SECONDS = 1.0
"""Pause of a key that is over its limit, when the provider asks for none."""
_KEY_REFUSED = {401, 403}
_BUSY = {429, 529}
_FAILED = {408, 409, 425}
"""Besides everything from 500 on."""
_SPENT = "insufficient_quota"
"""OpenAI's word for a key without credit, which it tells with 429."""
_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Sent:
    """One send of a question, for the audit log."""

    key: str
    status: int
    """0 if there was no answer."""
    seconds: float


@dataclass(slots=True)
class Question:
    """What is asked, and what has been done about it."""

    body: Mapping[str, Any]
    deadline: Deadline
    expected: Usage
    sends: list[Sent] = field(default_factory=list)

    @property
    def model(self) -> str:
        """As the client calls it."""
        return str(self.body["model"])


@dataclass(slots=True)
class _Lease:
    key: Key
    tokens: int
    tokens_used: int
    """As expected, unless the answer says otherwise: a provider counts what it was asked, seen by us or not."""


@dataclass(eq=False, slots=True)
class _Waiter:
    tokens: int
    lease: asyncio.Future[_Lease]


class Dispatcher:
    """Hands out keys in order of arrival and sends with them.

    A request that may be sent again backs off by itself (a service that fails) or leaves its key to rest (one that is
    over its limit, or refused), whichever is to blame; meanwhile others go on.
    """

    def __init__(
        self,
        rings: Mapping[str, Ring],
        retries: JudgeRetries,
        session: aiohttp.ClientSession,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._rings = rings
        self._retries = retries
        self._session = session
        self._clock = clock
        self._waiting: dict[str, deque[_Waiter]] = defaultdict(deque)
        self._alarm: asyncio.TimerHandle | None = None

    async def answer(self, question: Question) -> tuple[Answer, Usage]:
        """The provider's answer, and what it cost.

        Raises:
            NoVerdictError: if nobody answers within the attempts and the time.
            RefusedError: if the provider finds fault with the question.
        """
        for attempt in range(self._retries.attempts):
            async with self._leased_key(question) as lease:
                outcome = await self._send(question, lease.key)
                if not isinstance(outcome, float):
                    lease.tokens_used = outcome[1].tokens
                    return outcome
            pause = min(outcome * 2**attempt, self._retries.max_seconds) * random.uniform(0.5, 1.5)  # noqa: S311  jitter
            if pause > question.deadline.remaining:
                break
            await self._clock.sleep(pause)
        raise NoVerdictError(f"no answer after {len(question.sends)} sends: {self._problems(question.model)}")

    async def _send(self, question: Question, key: Key) -> tuple[Answer, Usage] | float:
        """The answer; or, after a failure, the seconds to back off with."""
        began = self._clock.now()
        status, data, problem = 0, b"", ""
        headers: Mapping[str, str] = {}
        try:
            async with asyncio.timeout(min(question.deadline.remaining, self._retries.send_timeout_seconds)):
                status, headers, data = await self._post(question, key)
            if status == 200:
                answer = wire.answer(key.provider, question.model, data)
                self._succeeded(key)
                priced = Usage.priced(key.models[question.model], answer.prompt_tokens, answer.completion_tokens)
                return answer, priced
        except _BROKEN as exc:
            problem = f"{type(exc).__name__}: {exc}"
        finally:
            question.sends.append(Sent(key.label, status, round(self._clock.now() - began, 4)))
        return self._failed(key, status, headers, data, problem)

    async def _post(self, question: Question, key: Key) -> tuple[int, Mapping[str, str], bytes]:
        upstream = key.models[question.model].upstream or question.model
        url, headers, body = wire.request(key.provider, upstream, key.secret, question.body)
        async with self._session.post(url, headers=headers, json=body, allow_redirects=False) as response:
            return response.status, response.headers, await response.read()

    def _succeeded(self, key: Key) -> None:
        key.problem = ""
        key.breaker.succeed()
        key.provider_breaker.succeed()

    def _failed(self, key: Key, status: int, headers: Mapping[str, str], data: bytes, problem: str) -> float:
        """Put the blame where it belongs; how long the request itself backs off."""
        now, body = self._clock.now(), key.redact(data.decode(errors="replace"))
        said = body[:_SHOWN_CHARS]
        if status in _BUSY:
            key.problem = f"status {status}: {said}"
            if _SPENT in body:
                key.breaker.fail(now, at_once=True)
            else:
                pause = retry_after(headers)
                key.resting_until = max(key.resting_until, now + (_DEFAULT_PAUSE_SECONDS if pause is None else pause))
            return 0.0
        if status in _KEY_REFUSED:
            key.problem = f"the key is refused with status {status}: {said}"
            key.breaker.fail(now, at_once=True)
            return 0.0
        if 400 <= status < 500 and status not in _FAILED:
            raise RefusedError(status=status, body=body)
        key.problem = key.redact(problem) or f"status {status}: {said}"
        key.provider_breaker.fail(now)
        if (pause := retry_after(headers)) is not None:
            key.resting_until = max(key.resting_until, now + pause)
        return self._retries.first_seconds

    @asynccontextmanager
    async def _leased_key(self, question: Question) -> AsyncIterator[_Lease]:
        lease = await self._wait_for_key(question)
        try:
            yield lease
        finally:
            self._give_back(lease)

    async def _wait_for_key(self, question: Question) -> _Lease:
        waiter = _Waiter(question.expected.tokens, asyncio.get_running_loop().create_future())
        self._waiting[question.model].append(waiter)
        self._pump()
        try:
            async with asyncio.timeout(question.deadline.remaining):
                return await waiter.lease
        except TimeoutError:
            self._forget(waiter)
            msg = f"no key was free in time for model {question.model}: {self._problems(question.model)}"
            raise NoVerdictError(msg) from None
        except asyncio.CancelledError:
            self._forget(waiter)
            raise

    def _forget(self, waiter: _Waiter) -> None:
        """Nobody waits any more; a key that was given in the same moment goes back."""
        if not waiter.lease.cancel() and not waiter.lease.cancelled():
            self._give_back(waiter.lease.result())

    def _give_back(self, lease: _Lease) -> None:
        lease.key.end(lease.tokens, lease.tokens_used, self._clock.now())
        lease.key.breaker.give_up()
        lease.key.provider_breaker.give_up()
        self._pump()

    def _pump(self) -> None:
        """Give keys to those who wait, in order, and look again when the next key is ready."""
        now = self._clock.now()
        times = []
        for model, queue in self._waiting.items():
            ring = self._rings[model]
            while queue:
                if not queue[0].lease.done():
                    key = ring.take(queue[0].tokens, now)
                    if key is None:
                        break
                    queue[0].lease.set_result(_Lease(key, queue[0].tokens, queue[0].tokens))
                queue.popleft()
            if queue and (ready_at := ring.ready_at(queue[0].tokens, now)) is not None:
                times.append(ready_at)
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(min(times) - now, self._pump) if times else None

    def _problems(self, model: str) -> str:
        problems = [f"{key.label}: {key.problem}" for key in self._rings[model].keys if key.problem]
        return "; ".join(problems) or "all keys are at their limits"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a provider asks to wait; None if it does not, or not in a way that can be read."""
    if (milliseconds := headers.get("retry-after-ms")) is not None:
        return _bounded(milliseconds, 1e-3)
    value = headers.get("Retry-After")
    if value is None:
        return None
    if (seconds := _bounded(value, 1.0)) is not None:
        return seconds
    try:
        date, until = parsedate_to_datetime(headers["Date"]), parsedate_to_datetime(value)
    except (KeyError, ValueError):
        return None
    return min(max(0.0, (until - date).total_seconds()), _MAX_PAUSE_SECONDS)


def _bounded(value: str, unit: float) -> float | None:
    try:
        return min(max(0.0, float(value) * unit), _MAX_PAUSE_SECONDS)
    except ValueError:
        return None
