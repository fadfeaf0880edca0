"""What a run asks its judge at once: verdicts through the keys of a provider that limits each, over real HTTP.

    python -m bench.judge_verdicts --verdicts 800 --keys 3

Provider, gateway and verifiers are processes of their own. The provider answers after a while and refuses a key that is
over its rate or asks for too much at once; what it saw is compared with what the verifiers got. Then, one verdict at
a time, what the gateway adds to an answer.
"""

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import aiohttp
from aiohttp import web

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.spec.judge import JudgeRetries, JudgeSpec
from seatrial_rollout.judge.audit import AuditLog
from seatrial_rollout.judge.gateway import Gateway
from seatrial_rollout.judge.keys import make_rings
from seatrial_rollout.judge.tokens import JudgeAccess, SigningKey
from seatrial_rollout.judge.wire import COMPLETIONS
from tests.judge_provider import JudgeService, environment, provider

RUN = "bench"
LIMITS: dict[str, Any] = {"requests": 100, "window_seconds": 10.0, "concurrency": 16}
"""Of each key; the gateway is told the same."""
MEAN_SECONDS = 0.4
"""Of an answer, log-normal with a coefficient of variation of 1."""
FAILURE_SHARE = 0.02
"""Answers that fail with status 500."""
NUM_SINGLE = 200


@dataclass
class SlowService(JudgeService):
    """Takes its time over an answer, and fails now and then."""

    def prepared(self, *, is_slow: bool) -> "SlowService":
        """Decide how it replies."""
        draw = random.Random(1)  # noqa: S311  the same in every run

        def reply(body: dict[str, Any]) -> str | web.Response:
            # Of the next answer.
            self.answer_seconds = draw.lognormvariate(-0.5 * 0.693, 0.8326) * MEAN_SECONDS
            if draw.random() < FAILURE_SHARE:
                return web.Response(status=500)
            return str(body["messages"][0]["content"])

        self.reply = reply if is_slow else lambda body: str(body["messages"][0]["content"])
        self.answer_seconds = MEAN_SECONDS if is_slow else 0.0
        return self


async def serve_provider(*, is_slow: bool) -> None:
    """Answer until standard input ends, then tell what was seen."""
    service = SlowService(**(LIMITS if is_slow else {})).prepared(is_slow=is_slow)
    async with service.serve():
        say({"url": service.url})
        await asyncio.to_thread(sys.stdin.read)
    say(
        {
            "requests": Counter(service.keys_used),
            "over the limit": service.over_limit,
            "too many at once": service.too_many_at_once,
            "most in a window": service.most_in_window,
            "most at once": service.most_at_once,
        }
    )


async def serve_gateway(settings: str) -> None:
    """Serve until standard input ends, then tell the CPU seconds."""
    facts = json.loads(settings)
    made = provider(facts["url"], num_keys=facts["keys"], **facts["limits"])
    spec = JudgeSpec(providers=[made], model="judge", retries=JudgeRetries())
    with tempfile.TemporaryDirectory() as folder:
        audit = AuditLog(Path(folder, "judge.jsonl"))
        gateway = Gateway(
            spec, make_rings(spec, environment(made)), run=RUN, public_pem=facts["public_pem"], audit=audit
        )
        say({"port": await gateway.start("127.0.0.1")})
        await asyncio.to_thread(sys.stdin.read)
        await gateway.stop()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    say({"cpu": usage.ru_utime + usage.ru_stime})


def say(facts: dict[str, Any]) -> None:
    """Tell the parent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


@dataclass
class Part:
    """A process of the bench."""

    process: subprocess.Popen[str]
    output: IO[str]

    def hear(self) -> dict[str, Any]:
        """What it says next."""
        facts: dict[str, Any] = json.loads(self.output.readline())
        return facts

    def end(self) -> dict[str, Any]:
        """Let it end, and hear what it has to say."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        facts = self.hear()
        self.process.wait()
        return facts


@contextmanager
def part(*arguments: str) -> Iterator[Part]:
    """A process that ends with the block."""
    command = [sys.executable, "-m", "bench.judge_verdicts", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("the process has no output")
        yield Part(process, process.stdout)
    finally:
        process.kill()
        process.wait()


async def ask(session: aiohttp.ClientSession, url: str, token: str, text: str) -> str:
    """One verdict; what went wrong instead."""
    body = {"model": "judge", "messages": [{"role": "user", "content": text}], "max_tokens": 100}
    headers = {"Authorization": f"Bearer {token}"}
    async with session.post(url, json=body, headers=headers) as response:
        content = await response.json()
    return str(content["choices"][0]["message"]["content"]) if response.status == 200 else f"status {response.status}"


def open_session() -> aiohttp.ClientSession:
    """A client without bounds of its own."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))


async def all_at_once(access: JudgeAccess, count: int) -> tuple[int, list[float]]:
    """Ask everything at once, eight questions a trial: how many were lost, and how long each took."""
    seconds: list[float] = []

    async def one(session: aiohttp.ClientSession, number: int) -> bool:
        began = SYSTEM_CLOCK.now()
        said = await ask(
            session, access.url + COMPLETIONS, access.token(f"trial-{number // 8}", f"{number // 8}", 600), f"q{number}"
        )
        seconds.append(SYSTEM_CLOCK.now() - began)
        return said == f"q{number}"

    async with open_session() as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(session, number)) for number in range(count)]
    return sum(not task.result() for task in tasks), sorted(seconds)


async def one_at_a_time(access: JudgeAccess, provider_url: str) -> tuple[float, float]:
    """Medians in ms of the same questions, straight to the provider and through the gateway."""
    token, direct, through = access.token("trial", "1", 600), list[float](), list[float]()
    async with open_session() as session:
        for number in range(NUM_SINGLE):
            for times, url, key in (
                (direct, f"{provider_url}/chat/completions", "fake_key_0"),
                (through, access.url + COMPLETIONS, token),
            ):
                began = time.perf_counter()
                await ask(session, url, key, f"q{number}")
                times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(direct), 1e3 * statistics.median(through)


@contextmanager
def gateway_to(url: str, num_keys: int, **limits: Any) -> Iterator[tuple[JudgeAccess, Part]]:
    """A gateway in front of a provider."""
    key = SigningKey.generate()
    settings = {"url": url, "keys": num_keys, "limits": limits, "public_pem": key.public_pem}
    with part("--gateway", json.dumps(settings)) as gateway:
        spec = JudgeSpec(providers=[provider(url)], model="judge")
        url = f"http://127.0.0.1:{gateway.hear()['port']}"
        yield JudgeAccess(RUN, url, key, "judge", 1, spec.trial_budget), gateway


async def measure(count: int, num_keys: int) -> None:
    """Print the table."""
    with part("--provider", "slow") as slow, gateway_to(slow.hear()["url"], num_keys, **LIMITS) as (access, gateway):
        began = SYSTEM_CLOCK.now()
        lost, seconds = await all_at_once(access, count)
        took = SYSTEM_CLOCK.now() - began
        cpu, seen = gateway.end()["cpu"], slow.end()
    # Windows that open before the last, and the rest at the pace of a key's concurrency.
    full, rest = divmod(count / num_keys, LIMITS["requests"])
    ideal = full * LIMITS["window_seconds"] + rest * MEAN_SECONDS / LIMITS["concurrency"]
    print(f"{count} verdicts at once over {num_keys} keys of {LIMITS}, {FAILURE_SHARE:.0%} of answers fail")
    print(f"  lost                       {lost}")
    for name, value in seen.items():
        print(f"  {name:25}  {value}")
    print(f"  seconds in all             {took:.1f}, of {ideal:.1f} that the limits ask for")
    middle, late = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
    print(f"  seconds a verdict          p50 {middle:.1f}, p99 {late:.1f}")
    print(f"  gateway's CPU a verdict    {1e3 * cpu / count:.2f} ms, its start included")
    with part("--provider", "fast") as fast:
        fast_url = fast.hear()["url"]
        with gateway_to(fast_url, 1, requests=100_000) as (access, _):
            direct, through = await one_at_a_time(access, fast_url)
    print(f"  one verdict at a time      {direct:.2f} ms straight, {through:.2f} ms through the gateway")


def main() -> None:
    """Measure, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=int, default=800)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--provider", choices=["slow", "fast"], help=argparse.SUPPRESS)
    parser.add_argument("--gateway", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.provider:
        asyncio.run(serve_provider(is_slow=options.provider == "slow"))
    elif options.gateway:
        asyncio.run(serve_gateway(options.gateway))
    else:
        asyncio.run(measure(options.verdicts, options.keys))


if __name__ == "__main__":
    main()
