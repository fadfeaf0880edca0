"""Ports on a sandbox's own loopback that its owner serves: the one way out, and only to verify."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from seatrial_api.sandbox_token import Phase
from seatrial_rollout.environment.interface import Sandbox
from seatrial_rollout.environment.isolation import Means
from seatrial_rollout.environment.remote import RemoteSandbox
from seatrial_rollout.environment.sandbox import LocalSandbox
from seatrial_rollout.trials.judging import JudgeSetting, judge_environment
from tests.judge_provider import JudgeService, provider
from tests.judges import judge
from tests.sandbox_daemons import DaemonSource, means, no_isolation

pytestmark = pytest.mark.skipif(means() is Means.PLAIN, reason=no_isolation())

ASK = """python3 - <<'END'
import json, os, urllib.request
body = json.dumps({"model": os.environ["JUDGE_MODEL"], "messages": [{"role": "user", "content": "Is it?"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
END"""


@pytest.fixture(params=["local", "remote"])
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    sandbox: Sandbox = (
        await LocalSandbox.start(tmp_path / "sandbox")
        if request.param == "local"
        else await RemoteSandbox.claim(DaemonSource(), "office", "trial-1")
    )
    yield sandbox
    await sandbox.stop()


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer everything that was said, in capitals, once the client has said it."""
    writer.write((await reader.read()).upper())
    await writer.drain()


def script(body: str, port: int) -> str:
    return f"python3 - <<'END'\nimport socket\nport = {port}\n{body}\nEND"


SAY = """
def say(data):
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))
"""


async def test_an_agent_reaches_what_is_served_for_it_and_only_as_long_as_that(sandbox: Sandbox) -> None:
    assert sandbox.phase is Phase.AGENT
    async with sandbox.serve_port(shout) as port:
        done = await sandbox.exec(script(f"{SAY}\nprint(say(b'model'))", port))
        assert done.stdout == "b'MODEL'\n", done.stderr
    late = await sandbox.exec(script("socket.create_connection(('127.0.0.1', port), 20)", port))
    assert "ConnectionRefusedError" in late.stderr


async def test_connections_from_inside_are_served_side_by_side(sandbox: Sandbox) -> None:
    await sandbox.kill_all()
    body = f"""{SAY}
from concurrent.futures import ThreadPoolExecutor
sent = [bytes([97 + number]) * (1 + number * 200_000) for number in range(8)]
print(list(ThreadPoolExecutor(8).map(say, sent)) == [data.upper() for data in sent])
"""
    async with sandbox.serve_port(shout) as port:
        done = await sandbox.exec(script(body, port))
    assert (done.stdout, done.return_code) == ("True\n", 0), done.stderr


async def test_a_port_closes_with_the_block_and_with_it_what_is_open(sandbox: Sandbox) -> None:
    await sandbox.kill_all()
    arrived = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()

    async with asyncio.TaskGroup() as group, sandbox.serve_port(wait) as port:
        body = "print(socket.create_connection(('127.0.0.1', port), 20).recv(1))"
        held = group.create_task(sandbox.exec(script(body, port)))
        await arrived.wait()
    assert held.result().stdout == "b''\n"
    late = await sandbox.exec(script("socket.create_connection(('127.0.0.1', port), 20)", port))
    assert "ConnectionRefusedError" in late.stderr


async def test_a_connection_that_cannot_be_served_is_closed_and_others_go_on(sandbox: Sandbox) -> None:
    await sandbox.kill_all()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        if data == b"bad":
            raise ConnectionRefusedError
        writer.write(data)

    async with sandbox.serve_port(refuse) as port:
        done = await sandbox.exec(script(f"{SAY}\nprint(say(b'bad'), say(b'good'))", port))
    assert done.stdout == "b'' b'good'\n", done.stderr


async def test_a_verifier_in_the_sandbox_reaches_the_judge(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.kill_all()
    async with (
        JudgeService().serve() as service,
        judge(provider(service.url), audit=tmp_path / "audit.jsonl") as verifier,
    ):
        with JudgeSetting(verifier.access, "trial-1", 60.0).current():
            async with judge_environment(sandbox) as environment:
                done = await sandbox.exec(ASK, env=environment)
    assert (done.stdout, done.return_code) == ("yes\n", 0), done.stderr
