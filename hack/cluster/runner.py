"""Brings up the processes of one copy in order and stays with them.

    python -m hack.cluster.runner FOLDER GRADE --socket DESCRIPTOR

The socket is bound to the copy's port on the machine's loopback. Says on its output, as one line of JSON, that the copy
is ready, or why not.
"""

import argparse
import asyncio
import json
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from hack.cluster import add_ons, control_plane, pki
from hack.cluster.layout import INSIDE, NODE, Grade, Layout, on_loopback
from hack.cluster.node import bring_up, namespaces
from hack.cluster.processes import Processes
from hack.cluster.startup import ESTABLISHED, Startup
from seatrial_api.clock import Deadline

_START_SECONDS = 180.0
"""A busy machine may take its time; a copy that is broken says so much earlier."""


async def run(name: str, layout: Layout, grade: Grade, entrance: socket.socket) -> None:
    """Bring a copy up, say so, and stay until told to end or until a process of it ends."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("not in a task")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    port = entrance.getsockname()[1]
    is_node = grade is Grade.NODE
    async with asyncio.TaskGroup() as group:
        processes = Processes(layout, group)
        if is_node:
            group.create_task(namespaces.relay(entrance, NODE.port))
        addresses = NODE if is_node else on_loopback(port)
        startup = Startup(name, layout, addresses, processes, Deadline.after(_START_SECONDS))
        await _bring_up(startup, grade)
        pki.write_kubeconfig(layout.kubeconfig, server=f"https://127.0.0.1:{port}", pki=layout.pki, identity=pki.ADMIN)
        _say(ready=True)


async def _bring_up(startup: Startup, grade: Grade) -> None:
    await asyncio.to_thread(pki.write_all, startup.layout.pki, startup.addresses)
    await startup.start(control_plane.etcd(startup.layout), control_plane.api_server(startup.layout, startup.addresses))
    if grade is Grade.NODE:
        await bring_up.start_runtime(startup)  # while the API server is on its way
    await startup.served("/readyz")
    if grade.includes(Grade.CONTROLLERS):
        await _start_controllers(startup)
    if grade is Grade.NODE:
        await bring_up.start_node(startup)


async def _start_controllers(startup: Startup) -> None:
    layout = startup.layout
    await startup.start(control_plane.controller_manager(layout, startup.addresses), control_plane.scheduler(layout))
    crds = f"--filename={add_ons.RAY_CRDS}"
    await startup.kubectl("apply", "--server-side", crds)
    for condition in ESTABLISHED:
        await startup.kubectl("wait", f"--for={condition}", "--timeout=180s", crds)
    await startup.kubectl("apply", "--server-side", f"--filename={add_ons.RAY_ROLE}")
    await startup.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(add_ons.ray_role_binding()))
    await startup.start(add_ons.kuberay(layout), add_ons.kwok(layout))
    await startup.served("/api/v1/namespaces/default/serviceaccounts/default")


def main() -> int:
    """Run one copy; 1 if it did not come up or did not stay up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("grade", type=Grade)
    parser.add_argument("--socket", type=int, required=True)
    arguments = parser.parse_args()
    folder, grade = arguments.folder, arguments.grade
    try:
        if grade is Grade.NODE:
            namespaces.furnish(folder)
            folder = INSIDE
        with socket.socket(fileno=arguments.socket) as entrance:
            asyncio.run(run(arguments.folder.name, Layout(folder), grade, entrance))
    except asyncio.CancelledError:
        return 0
    except Exception as exc:  # noqa: BLE001  the root of the process: whatever it was, the owner is told
        traceback.print_exception(exc)
        _say(error=str(exc.exceptions[0] if isinstance(exc, ExceptionGroup) else exc))
        return 1
    return 0


def _say(**words: object) -> None:
    with suppress(BrokenPipeError):  # nobody listens any more: the log has it
        print(json.dumps(words), flush=True)


if __name__ == "__main__":
    sys.exit(main())
