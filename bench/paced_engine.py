"""A stand-in for vLLM that keeps a real one's time: every request gets 40 tokens a second, however many there are.

It answers vLLM's token route behind the real gateway. Nothing is sampled: turns of 60 to 400 tokens are made up
beforehand, each with a call of one tool, and a trial's last turn has none. Server and gateway are processes of their
own, so that their CPU time is their own.
"""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_rollout.engine.gate import Gate
from seatrial_rollout.engine.gateway import Gateway, Upstream
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.tito.template import ChatTemplate
from tests.engine_server import tool_call

TOKENS_A_SECOND = 40.0
TURN_TOKENS = (60, 400)
NUM_TURNS = 6
"""Of a trial; all but the last call a tool."""
MEAN_TRIAL_SECONDS = NUM_TURNS * sum(TURN_TOKENS) / 2 / TOKENS_A_SECOND
"""What a trial takes if nothing but the engine takes time."""
CALL = tool_call("filesystem_read_text_file", path="README.txt")
_MODULE = "bench.paced_engine"
_TOKEN = "bench"  # noqa: S105  of this bench
_NUM_VARIANTS = 200
_OPENING_STOPS = 2
"""Stop tokens in a trial's first prompt: behind the tools and behind the instruction. A turn adds two."""


@dataclass(frozen=True)
class PacedEngine:
    """A running stand-in."""

    address: EngineAddress
    """Of the gateway."""
    server_pid: int
    gateway_pid: int


@contextmanager
def paced_engine(model: Path, folder: Path) -> Iterator[PacedEngine]:
    """Start server and gateway; `folder` is for their socket."""
    socket = str(folder / "vllm.sock")
    with ExitStack() as stack:
        processes, ports = [], []
        for role in (("server", socket, str(model)), ("gateway", socket)):
            process = subprocess.Popen([sys.executable, "-m", _MODULE, *role], stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            ports.append(int(process.stdout.readline()))
            processes.append(process)
        address = EngineAddress("paced", f"http://127.0.0.1:{ports[1]}", _TOKEN)
        yield PacedEngine(address, processes[0].pid, processes[1].pid)


@dataclass(frozen=True)
class _Answer:
    seconds: float
    body: bytes


class _Server:
    """vLLM's route for tokens."""

    def __init__(self, template: ChatTemplate) -> None:
        self._random = random.Random(0)  # noqa: S311  a benchmark's data
        self._stop = min(template.stop_token_ids)
        words = [word for line in Path(__file__).read_text().splitlines() for word in line.split() if word.isalpha()]
        self._filler = template.encode(" ".join(words * 4))
        self._calls = [self._make(template.encode(CALL)) for _ in range(_NUM_VARIANTS)]
        self._finals = [self._make([]) for _ in range(_NUM_VARIANTS)]

    async def generate(self, request: web.Request) -> web.Response:
        """Answer when the time is up."""
        arrived = SYSTEM_CLOCK.now()
        prompt: list[int] = msgspec.json.decode(await request.read())["token_ids"]
        turn = (prompt.count(self._stop) - _OPENING_STOPS) // 2
        answer = self._random.choice(self._calls if turn < NUM_TURNS - 1 else self._finals)
        await SYSTEM_CLOCK.sleep(arrived + answer.seconds - SYSTEM_CLOCK.now())
        return web.Response(body=answer.body, content_type="application/json")

    def _make(self, ending: list[int]) -> _Answer:
        num_tokens = self._random.randint(*TURN_TOKENS)
        start = self._random.randrange(len(self._filler) - num_tokens)
        tokens = [*self._filler[start : start + num_tokens - len(ending) - 1], *ending, self._stop]
        logprobs = [{"token_id": token, "logprob": -1.2725133895874023, "rank": 1} for token in tokens]
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "token_ids": tokens,
            "weight_versions": [{"version": "1", "start": 0, "end": num_tokens}],
            "logprobs": {"content": [entry | {"top_logprobs": [entry]} for entry in logprobs]},
        }
        usage = {"prompt_tokens_details": {"cached_tokens": 0}}
        return _Answer(num_tokens / TOKENS_A_SECOND, json.dumps({"choices": [choice], "usage": usage}).encode())


async def _serve(socket: str, model: Path) -> None:
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/inference/v1/generate", _Server(ChatTemplate.load(model)).generate)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, socket, backlog=4096).start()
    print(0, flush=True)
    await asyncio.Event().wait()


async def _serve_gateway(socket: str) -> None:
    gate = Gate()
    gateway = Gateway(token=_TOKEN, gate=gate, max_running=1024)
    connector = aiohttp.UnixConnector(socket, limit=0)
    no_limit = aiohttp.ClientTimeout(total=None)
    gateway.upstream = Upstream(aiohttp.ClientSession("http://vllm", connector=connector, timeout=no_limit), "1.1")
    gate.open()
    print(await gateway.start("127.0.0.1"), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["server", uds, model_path]:
            asyncio.run(_serve(uds, Path(model_path)))
        case ["gateway", uds]:
            asyncio.run(_serve_gateway(uds))
        case _:
            sys.exit("started by rollout_loop.py")
