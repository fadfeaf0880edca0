"""`python -m seatrial_rollout.serving --request FILE`: serves a pool on its own; runs beside Ray on the head pod."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import prometheus_client
import ray
import structlog
from pydantic import ValidationError

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.errors import InvalidInputError, SeatrialError
from seatrial_api.pods import SCRATCH_MOUNT
from seatrial_api.serving import SERVING_PORT, TOKEN_VARIABLE, ServingRequest
from seatrial_rollout.serving.endpoint import Endpoint
from seatrial_rollout.serving.fleet import EngineFleet
from seatrial_rollout.serving.ray_engines import engine_starter, rollout_nodes
from seatrial_rollout.serving.telemetry import Telemetry

_JOIN_SECONDS = 180.0
"""For Ray, which is started beside this process, to answer."""
_RETRY_SECONDS = 1.0

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="seatrial_rollout.serving", description="Serve a pool of engines.")
    parser.add_argument("--request", type=Path, required=True, help="file with the ServingRequest as JSON")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104  a token guards it
    parser.add_argument("--port", type=int, default=SERVING_PORT, help="port to listen on; 0 takes a free one")
    parser.add_argument("--logs", type=Path, default=Path(SCRATCH_MOUNT) / "engines", help="folder of engine logs")
    wanted = parser.parse_args(arguments)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter
    try:
        request = _read_request(wanted.request)
        token = os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise InvalidInputError(f"{TOKEN_VARIABLE} is not set; without a token anybody could use the engines")
        asyncio.run(serve(request, token, host=wanted.host, port=wanted.port, work_dir=wanted.logs))
    except SeatrialError as exc:
        log.error("the pool cannot be served", error=str(exc))  # noqa: TRY400  the sentence suffices
        return 1
    return 0


async def serve(request: ServingRequest, token: str, *, host: str, port: int, work_dir: Path) -> None:
    """Join Ray and serve until SIGTERM or SIGINT.

    Raises:
        WaitTimeoutError: Ray does not answer.
    """
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await join_ray(SYSTEM_CLOCK)
    fleet = EngineFleet(rollout_nodes, engine_starter(request, work_dir))
    context = request.model.context_length.train
    endpoint = Endpoint(fleet, Telemetry(), token=token, context_length=context)
    try:
        bound = await endpoint.start(host, port)
        log.info("serving", pool=request.pool, port=bound)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(fleet.run())
            await stopped.wait()
            following.cancel()
    finally:
        await endpoint.stop()
        ray.shutdown()


async def join_ray(clock: Clock) -> None:
    """Connect to the Ray of this machine, which may still be starting.

    Raises:
        WaitTimeoutError: it does not answer.
    """
    deadline = Deadline.after(_JOIN_SECONDS, clock)
    while True:
        try:
            await asyncio.to_thread(ray.init, address="auto", log_to_driver=False)
        except (ConnectionError, RuntimeError) as error:
            log.debug("Ray does not answer yet", error=str(error))
            deadline.check("the Ray of this machine to start")
            await clock.sleep(_RETRY_SECONDS)
        else:
            return


def _read_request(path: Path) -> ServingRequest:
    try:
        return ServingRequest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as exc:
        raise InvalidInputError(f"cannot read what to serve from {path}: {exc}") from exc


if __name__ == "__main__":
    sys.exit(main())
