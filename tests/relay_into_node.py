"""Carries connections from a Unix socket to an address that only the node of a test cluster reaches.

relay_into_node.py SOCKET HOST PORT

It ends with its standard input: whoever started it, through others, may be killed.
"""

import asyncio
import os
import sys
from contextlib import suppress


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # one side hung up: the other learns it by our closing
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()


async def _serve(path: str, host: str, port: int) -> None:
    async def carry(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        try:
            server, requests = await asyncio.open_connection(host, port)
        except OSError:
            answers.close()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(client, requests))
            group.create_task(_pump(server, answers))

    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, over.set)
    async with await asyncio.start_unix_server(carry, path):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await over.wait()
        os._exit(0)  # with connections open, which nobody needs any more


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
