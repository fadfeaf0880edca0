"""What the engine's gateway costs per request, in CPU and in time, against a server that answers at once.

    python bench/gateway_overhead.py

Server, gateway and client are processes of their own, so that the gateway's CPU time is its own.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from aiohttp import web

from seatrial_rollout.engine.client import EngineClient
from seatrial_rollout.engine.gate import Gate
from seatrial_rollout.engine.gateway import Gateway, Upstream
from seatrial_rollout.engine.generation import EngineAddress, GenerationRequest

NUM_REQUESTS = 1600
NUM_CLIENTS = 16
SIZES = ((500, 40), (8_000, 40), (8_000, 1_000))
"""Tokens in and out."""


def answer(num_out: int) -> bytes:
    """What vLLM answers."""
    tokens = [{"token_id": t, "logprob": -1.2725133895874023, "rank": 1} for t in range(num_out)]
    content = [token | {"top_logprobs": [token]} for token in tokens]
    versions = [{"version": "1", "start": 0, "end": num_out}]
    choice = {"index": 0, "finish_reason": "length", "token_ids": list(range(num_out))}
    choice |= {"weight_versions": versions, "logprobs": {"content": content}}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 0}}}).encode()


async def serve(socket: str, num_out: int) -> None:
    """The server behind the gateway."""
    body = answer(num_out)

    async def generate(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/inference/v1/generate", generate)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, socket).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


async def serve_gateway(socket: str) -> None:
    """The gateway."""
    gate = Gate()
    gateway = Gateway(token="bench", gate=gate, max_running=256)  # noqa: S106  of this bench
    connector = aiohttp.UnixConnector(socket, limit=0)
    gateway.upstream = Upstream(aiohttp.ClientSession("http://vllm", connector=connector), "0.1")
    gate.open()
    print(await gateway.start("127.0.0.1"), flush=True)
    await asyncio.Event().wait()


async def drive(port: int, num_in: int, num_out: int, num_requests: int) -> float:
    """Send requests, and return how long it took."""
    request = GenerationRequest(list(range(num_in)), num_out, 1.0)
    address = EngineAddress("bench", f"http://127.0.0.1:{port}", "bench")
    async with EngineClient([address], timeout_seconds=60) as client:

        async def send(number: int) -> None:
            for _ in range(number):
                await client.generate(request)

        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_CLIENTS):
                tasks.create_task(send(num_requests // NUM_CLIENTS))
        return time.monotonic() - started


def cpu_seconds(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def measure(num_in: int, num_out: int) -> None:
    """Print one row."""
    with contextlib.ExitStack() as stack:
        socket = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "server.sock")
        processes = []
        lines = []
        for role in (("server", socket, str(num_out)), ("gateway", socket)):
            process = subprocess.Popen([sys.executable, __file__, *role], stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            lines.append(process.stdout.readline())
            processes.append(process)
        port = int(lines[1])
        asyncio.run(drive(port, num_in, num_out, NUM_CLIENTS))
        before = cpu_seconds(processes[1].pid)
        seconds = asyncio.run(drive(port, num_in, num_out, NUM_REQUESTS))
        cpu = cpu_seconds(processes[1].pid) - before
    print(f"| {num_in} | {num_out} | {1e3 * cpu / NUM_REQUESTS:.2f} | {1e3 * seconds / NUM_REQUESTS:.2f} |", flush=True)


def main() -> None:
    """Measure, or be one of the processes."""
    match sys.argv[1:]:
        case ["server", socket, num_out]:
            asyncio.run(serve(socket, int(num_out)))
        case ["gateway", socket]:
            asyncio.run(serve_gateway(socket))
        case _:
            print("| tokens in | out | gateway CPU ms/request | wall ms/request, all three on the machine |")
            print("| ---: | ---: | ---: | ---: |", flush=True)
            for size in SIZES:
                measure(*size)


if __name__ == "__main__":
    main()
