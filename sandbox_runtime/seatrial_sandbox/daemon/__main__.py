"""`python -m seatrial_sandbox.daemon`: be a sandbox's daemon, told by its environment what to do."""

import asyncio
import logging
import os
import signal
import sys

from pydantic import ValidationError

from seatrial_api.errors import InvalidInputError, SeatrialError
from seatrial_api.sandboxd_config import CONFIG_VARIABLE, UID_VARIABLE, SandboxdConfig

EXIT_INVALID = 2
_GRACE_SECONDS = 2.0
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),  # a client between two calls looks whether we are there
    ("grpc.max_receive_message_length", 64 * 1024**2),
)


def main() -> int:
    """Serve until asked to end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the kernel keeps from a first process
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    try:
        config, uid = _configuration()
        asyncio.run(_serve(config, uid))
    except SeatrialError as error:
        sys.stderr.write(f"sandboxd: {error}\n")
        return EXIT_INVALID
    return 0


def _configuration() -> tuple[SandboxdConfig, str]:
    uid = os.environ.get(UID_VARIABLE, "")
    if not uid:
        raise InvalidInputError(f"{UID_VARIABLE} is not set; it must hold the uid of the pod")
    try:
        return SandboxdConfig.model_validate_json(os.environ.get(CONFIG_VARIABLE, "")), uid
    except ValidationError as error:
        raise InvalidInputError(f"{CONFIG_VARIABLE} is no configuration of sandboxd: {error}") from error


async def _serve(config: SandboxdConfig, uid: str) -> None:
    from grpc import aio  # noqa: PLC0415  --help and complaints can do without

    from seatrial_api.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from seatrial_api.protos.sandboxd_pb2_grpc import add_SandboxdServicer_to_server  # noqa: PLC0415
    from seatrial_sandbox.daemon import tools  # noqa: PLC0415
    from seatrial_sandbox.daemon.admission import Gate  # noqa: PLC0415
    from seatrial_sandbox.daemon.authority import Authority, public_key  # noqa: PLC0415
    from seatrial_sandbox.daemon.probe import probe_handler  # noqa: PLC0415
    from seatrial_sandbox.daemon.sandbox import Sandbox  # noqa: PLC0415
    from seatrial_sandbox.daemon.service import Service  # noqa: PLC0415
    from seatrial_sandbox.privileges import become_subreaper, hide_memory  # noqa: PLC0415
    from seatrial_sandbox.syscalls import filter_calls  # noqa: PLC0415

    hide_memory()
    try:
        filter_calls()
    except OSError as error:  # its container's profile still holds
        logging.getLogger("sandboxd").warning("system calls are not filtered: %s", error)
    become_subreaper()  # where somebody else is the first process
    sandbox = Sandbox(config, dict(os.environ))
    if config.servers:
        tools.check(sandbox.servers)
    gate = Gate(sandbox, Authority(public_key(config.public_key), uid))
    server = aio.server(options=_SERVER_OPTIONS)
    add_SandboxdServicer_to_server(Service(gate, SYSTEM_CLOCK.now()), server)
    server.add_generic_rpc_handlers((probe_handler(),))
    try:
        server.add_insecure_port(config.listen)
    except RuntimeError as error:
        raise InvalidInputError(f"listen: {config.listen!r} cannot be had: {error}") from error
    asked = asyncio.Event()
    if os.getpid() != 1:  # there an agent could ask as well: only SIGKILL from outside ends the first process
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    async with asyncio.TaskGroup() as group:
        reaping = group.create_task(sandbox.reap())
        await sandbox.warm()
        await server.start()
        logging.getLogger("sandboxd").info("ready on %s", config.listen)
        await asked.wait()
        await server.stop(_GRACE_SECONDS)
        reaping.cancel()


if __name__ == "__main__":
    sys.exit(main())
