"""An engine that says what a test tells it to, behind the HTTP interface of a real one's gateway."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from seatrial_rollout.engine.generation import EngineAddress, Generation
from seatrial_rollout.engine.wire import decode_request, encode
from seatrial_rollout.tito.template import ChatTemplate

type Script = Callable[[str, int], Awaitable[str]]
"""From a trial's id and the number of its turn to the text of that turn."""

LOGPROB = -0.25
WEIGHT_VERSION = 7


def tool_call(name: str, **arguments: object) -> str:
    """A turn that calls one tool, as models of the Hermes family write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class EngineServer:
    """Answers `/generate` from a script and says so; log-probabilities and weight versions are made up."""

    def __init__(self, model_path: Path, script: Script) -> None:
        self._template = ChatTemplate.load(model_path)
        self._script = script
        self._runner: web.AppRunner | None = None
        self._url = ""
        self.turns: Counter[str] = Counter()
        """Turns asked for, by trial."""
        self.weight_version = WEIGHT_VERSION
        """What it says to have; of a turn in which it changes, the first half of the tokens is the former one's."""

    @property
    def address(self) -> EngineAddress:
        """Where it is reached."""
        return EngineAddress("scripted", self._url, "secret")

    async def start(self) -> None:
        """Listen on a free port."""
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        self._url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Die: connections are cut, new ones refused."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _generate(self, http_request: web.Request) -> web.Response:
        if http_request.headers.get("Authorization") != "Bearer secret":
            return web.json_response({"error": "wrong token"}, status=401)
        request = decode_request(await http_request.read())
        turn = self.turns[request.trial_id]
        self.turns[request.trial_id] += 1
        before = self.weight_version
        text = await self._script(request.trial_id, turn)
        token_ids = [*self._template.encode(text), request.stop_token_ids[0]][: request.max_tokens]
        half = len(token_ids) // 2
        generation = Generation(
            token_ids=token_ids,
            logprobs=[LOGPROB] * len(token_ids),
            weight_versions=[before] * half + [self.weight_version] * (len(token_ids) - half),
            finish_reason="stop" if token_ids[-1] in request.stop_token_ids else "length",
        )
        return web.Response(body=encode(generation), content_type="application/json", headers={"Server": "scripted"})


@asynccontextmanager
async def engine_server(model_path: Path, script: Script) -> AsyncIterator[EngineServer]:
    """A running engine."""
    engine = EngineServer(model_path, script)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
