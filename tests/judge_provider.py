"""A provider of judge models over real HTTP, with limits of its own that it enforces and remembers."""

import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.spec.judge import JudgeKey, JudgeKeyLimits, JudgeModel, JudgeProvider
from tests.web_servers import web_server

type Reply = Callable[[dict[str, Any]], str | web.Response]


@dataclass
class JudgeService:
    """Answers questions of known keys; a key over its limit gets 429."""

    requests: int = 1_000_000
    """A key's requests per window."""
    window_seconds: float = 60.0
    concurrency: int = 1_000_000
    """A key's requests at once."""
    answer_seconds: float = 0.0
    """Time of an answer."""
    reply: Reply = lambda _: "yes"
    """Makes the text, or the whole response."""
    url: str = ""
    keys_used: list[str] = field(default_factory=list)
    """The key of each request, in order."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    over_limit: int = 0
    """Requests of a key that had used up its window."""
    too_many_at_once: int = 0
    most_in_window: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Per key."""
    most_at_once: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Per key."""
    _arrivals: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    _under_way: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["JudgeService"]:
        """Listen while the block runs."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self._openai)
        app.router.add_post("/v1/messages", self._anthropic)
        async with web_server(app) as host:
            self.url = f"http://{host}/v1"
            yield self

    async def _openai(self, request: web.Request) -> web.Response:
        key = request.headers["Authorization"].removeprefix("Bearer ")
        return await self._take(key, await request.json(), openai_answer)

    async def _anthropic(self, request: web.Request) -> web.Response:
        assert request.headers["anthropic-version"]
        return await self._take(request.headers["x-api-key"], await request.json(), anthropic_answer)

    async def _take(self, key: str, body: dict[str, Any], answer: Callable[[str], Mapping[str, Any]]) -> web.Response:
        self.keys_used.append(key)
        self.bodies.append(body)
        if (wait := self._count(key)) is not None:
            return web.json_response({"error": "over the limit"}, status=429, headers={"Retry-After": f"{wait:.3f}"})
        self._under_way[key] += 1
        self.most_at_once[key] = max(self.most_at_once[key], self._under_way[key])
        self.too_many_at_once += self._under_way[key] > self.concurrency
        try:
            if self.answer_seconds:
                await SYSTEM_CLOCK.sleep(self.answer_seconds)
            said = self.reply(body)
        finally:
            self._under_way[key] -= 1
        return said if isinstance(said, web.Response) else web.json_response(answer(said))

    def _count(self, key: str) -> float | None:
        """Seconds until the key may ask again; None if it may."""
        now, arrivals = time.monotonic(), self._arrivals[key]
        while arrivals and arrivals[0] + self.window_seconds <= now:
            arrivals.popleft()
        arrivals.append(now)
        self.most_in_window[key] = max(self.most_in_window[key], len(arrivals))
        if len(arrivals) <= self.requests:
            return None
        self.over_limit += 1
        return arrivals[0] + self.window_seconds - now


def openai_answer(text: str) -> dict[str, Any]:
    """A chat completion: 10 tokens in, 5 out."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {"id": "1", "object": "chat.completion", "choices": choices, "usage": usage}


def anthropic_answer(text: str) -> dict[str, Any]:
    """A message: 8 tokens in and 2 from the cache, 5 out."""
    usage = {"input_tokens": 8, "cache_read_input_tokens": 2, "output_tokens": 5}
    content = [{"type": "text", "text": text}]
    return {"id": "1", "type": "message", "content": content, "stop_reason": "end_turn", "usage": usage}


def provider(
    url: str, *, name: str = "fake", api: Any = "OpenAI", num_keys: int = 1, price: float = 0.0, **limits: Any
) -> JudgeProvider:
    """How a run names a service; its keys are `KEY_0` and so on, and the keyword arguments limit each."""
    return JudgeProvider(
        name=name,
        api=api,
        base_url=url,
        keys=[JudgeKey(env=f"{name.upper()}_KEY_{number}") for number in range(num_keys)],
        key_limits=JudgeKeyLimits(**limits),
        models=[JudgeModel(name="judge", prompt_million_tokens=price, completion_million_tokens=price)],
    )


def environment(*providers: JudgeProvider) -> dict[str, str]:
    """Values of all keys: the name of the variable, in small letters."""
    return {key.variable: key.variable.lower() for provider in providers for key in provider.keys}
