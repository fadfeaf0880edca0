"""One process that serves everything a sandbox offers: its MCP servers and commands, a Unix socket each.

    client ── connect ──▶ <server>.sock    newline-delimited JSON-RPC; a new MCP session per connection
    client ── connect ──▶ <commands>.sock  one JSON line with a command, one JSON line with what it left

Each listener runs in a task; each connection in a task of its own. All of them end when a lifeline does.
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from seatrial_sandbox.processes import Command, ProcessTable, readable, run
from seatrial_sandbox.server_spec import MAX_LINE_BYTES
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.transport import streams

type Handler = Callable[[socket.socket], Awaitable[None]]
"""Serves one connection until its end; it owns the socket."""


class _LifelineEndedError(Exception):
    """Whoever keeps the sandbox is gone."""


async def serve(
    handlers: Sequence[tuple[socket.socket, Handler]], lifelines: Sequence[int], *beside: Coroutine[None, None, None]
) -> None:
    """Serve listening sockets until one of the lifelines can be read.

    Args:
        handlers: Listening sockets, each with what serves its connections.
        lifelines: Descriptors: the connection of the sandbox's owner (read at its end), or pidfds.
        beside: What is to run meanwhile; its errors end all.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for listener, handler in handlers:
                group.create_task(_accept(listener, handler, group))
            for task in (*beside, *map(_watch, lifelines)):
                group.create_task(task)
    except* _LifelineEndedError:
        pass


def mcp_handler(server: ToolServer) -> Handler:
    """Serve an MCP server: a new session for every connection."""

    async def handle(connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE_BYTES)
        await server.serve(*streams(reader, writer))

    return handle


def process_handler(argv: Sequence[str], cwd: Path) -> Handler:
    """Serve any other MCP server: a new process for every connection, its stdin and stdout being the socket."""

    async def handle(connection: socket.socket) -> None:
        with connection:
            connection.setblocking(True)  # noqa: FBT003  as a program expects of its stdin
            process = await asyncio.create_subprocess_exec(
                *argv, cwd=cwd, stdin=connection.fileno(), stdout=connection.fileno()
            )
        await process.wait()

    return handle


def command_handler(env: Mapping[str, str], cwd: Path, table: ProcessTable, *, leave_nothing: bool = False) -> Handler:
    """Run one command per connection; a client that hangs up kills what it started.

    Args:
        env: Environment that every command begins with.
        cwd: Where a command starts that does not say.
        table: The processes among which to kill.
        leave_nothing: Whether nothing that a command started outlives it.
    """

    async def handle(connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE_BYTES)
        try:
            request = json.loads(await reader.readline())
            command = Command(
                argv=request["argv"],
                cwd=Path(request["cwd"] or cwd),
                env={**env, **request["env"]},
                timeout_seconds=request["timeout_seconds"],
            )
            async with asyncio.TaskGroup() as group:
                running = group.create_task(_answer(command, table, leave_nothing=leave_nothing))
                hung_up = group.create_task(reader.read(1))
                await asyncio.wait({running, hung_up}, return_when=asyncio.FIRST_COMPLETED)
                running.cancel()
                hung_up.cancel()
            if not running.cancelled():
                writer.write(json.dumps(running.result()).encode() + b"\n")
                await writer.drain()
        finally:
            writer.close()

    return handle


async def _answer(command: Command, table: ProcessTable, *, leave_nothing: bool) -> dict[str, Any]:
    try:
        done = await run(command, table, leave_nothing=leave_nothing)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the command
        return {"error": str(error), "errno": getattr(error, "errno", None)}
    return {
        "return_code": done.return_code,
        "stdout": done.stdout.text(),
        "stderr": done.stderr.text(),
        "timed_out": done.timed_out,
    }


async def _accept(listener: socket.socket, handler: Handler, group: asyncio.TaskGroup) -> None:
    loop = asyncio.get_running_loop()
    listener.setblocking(False)  # noqa: FBT003  the standard library's signature
    while True:
        connection, _ = await loop.sock_accept(listener)
        group.create_task(_guard(handler, connection))


async def _guard(handler: Handler, connection: socket.socket) -> None:
    """One connection's fault ends that connection only."""
    try:
        await handler(connection)
    except Exception as error:  # noqa: BLE001  the root of a connection's task
        with suppress(OSError):
            os.write(2, f"connection failed: {error!r}\n".encode())
        connection.close()


async def _watch(lifeline: int) -> None:
    await readable(lifeline)
    raise _LifelineEndedError
