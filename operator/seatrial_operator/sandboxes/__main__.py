"""`python -m seatrial_operator.sandboxes`: the broker's process."""

import asyncio
import gc
import sys

import grpc
import structlog

from seatrial_api.errors import InvalidInputError
from seatrial_api.protos.broker_pb2_grpc import add_SandboxBrokerServicer_to_server
from seatrial_operator.config import OperatorConfig, load_config
from seatrial_operator.handlers.probes import Readiness, probes
from seatrial_operator.kube.client import KubeClient, connect
from seatrial_operator.kube.lease import Lease, LeaseLostError
from seatrial_operator.kube.patience import patiently
from seatrial_operator.metrics.sandboxes import SERVING
from seatrial_operator.process import configure_logging, new_identity, own_namespace, until_signal
from seatrial_operator.sandboxes.broker import Broker
from seatrial_operator.sandboxes.callers import Callers
from seatrial_operator.sandboxes.counts import Counts
from seatrial_operator.sandboxes.server import BrokerService
from seatrial_operator.sandboxes.tokens import TokenSigner
from seatrial_operator.sandboxes.worlds import ClusterFacts, Worlds

log = structlog.get_logger("seatrial_operator.sandboxes")  # `python -m` gives this module another name

FIELD_MANAGER = "seatrial-broker"
_GRACE_SECONDS = 2.0
"""Time that calls have to end; those that wait are answered by the next broker."""
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
)


async def serve(config: OperatorConfig) -> None:
    """Run the broker until a signal ends it.

        probes ── cluster ── lease ── { key, facts ── watches ── listed ──▶ gRPC }

    While the API server does not answer it waits. Only the holder of the Lease listens, after everything was listed, so
    callers find one broker that knows who holds what. A broker that waits is healthy and not ready: the Service sends
    nobody there.

    Raises:
        InvalidInputError: if there are no credentials, or the port is taken.
        LeaseLostError: if another broker may act from now on.
    """
    settings = config.sandboxes
    readiness = Readiness()
    async with (
        probes(health_port=config.health_port, metrics_port=config.metrics_port, readiness=readiness),
        connect(FIELD_MANAGER) as client,
    ):
        await patiently(client.server_version, readiness.wait_for)
        readiness.wait_for(f"the Lease {settings.lease.name}, which one broker at a time holds")
        namespace = settings.lease.namespace or own_namespace()
        lease = Lease(client, settings.lease, namespace, new_identity())
        await lease.run(lambda: _work(client, config, namespace, readiness))


async def _work(client: KubeClient, config: OperatorConfig, namespace: str, readiness: Readiness) -> None:
    settings = config.sandboxes
    signer = await patiently(
        lambda: TokenSigner.load(client, namespace, settings.key_secret, settings.token_seconds), readiness.wait_for
    )
    facts = await patiently(lambda: ClusterFacts.find(client, settings), readiness.wait_for)
    worlds = Worlds(client, settings, signer.public_key, facts)
    broker = Broker(client, worlds, config)
    counts = Counts(client, worlds, broker.pools, settings.status_seconds)
    service = BrokerService(broker, Callers(client, config.namespaces), signer, settings.lease_seconds)
    server = grpc.aio.server(options=_OPTIONS)
    add_SandboxBrokerServicer_to_server(service, server)
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(broker.run(), name="broker")
        await broker.serving()
        gc.freeze()  # or each full collection would walk all modules, and claims wait for it tens of milliseconds
        counting = tasks.create_task(counts.run(), name="counts")
        port = _listen(server, settings.port)
        await server.start()
        readiness.reached()
        SERVING.set(1)
        log.info("listening", port=port)
        try:
            await server.wait_for_termination()
        finally:
            readiness.wait_for("ending")
            SERVING.set(0)
            await server.stop(_GRACE_SECONDS)
        keeping.cancel()
        counting.cancel()


def _listen(server: grpc.aio.Server, port: int) -> int:
    try:
        return server.add_insecure_port(f"[::]:{port}")
    except RuntimeError as exc:
        msg = f"cannot listen on port {port}: {exc}; set config.sandboxes.port to one that is free"
        raise InvalidInputError(msg) from exc


def main() -> int:
    """Entry point; 1 if another broker took over, 2 if the broker cannot be started as it is set up."""
    configure_logging()
    code = 0
    try:
        asyncio.run(until_signal(serve(load_config())))
    except* InvalidInputError as group:
        log.error("the broker cannot be started", error=_sentence(group))  # noqa: TRY400  the sentence suffices
        code = 2
    except* LeaseLostError as group:
        log.error("the broker ends", error=_sentence(group))  # noqa: TRY400  the sentence suffices
        code = 1
    return code


def _sentence(group: BaseException) -> str:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return str(group)


if __name__ == "__main__":
    sys.exit(main())
