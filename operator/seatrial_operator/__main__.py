"""`python -m seatrial_operator`: the operator's process."""

import asyncio
import sys
from collections.abc import Sequence

import aiohttp
import structlog

from seatrial_api.errors import InvalidInputError
from seatrial_operator.config import OperatorConfig, load_config
from seatrial_operator.controller.controller import Controller, Reconciler
from seatrial_operator.handlers.probes import Readiness, probes
from seatrial_operator.handlers.watching import watch
from seatrial_operator.kube.client import KubeClient, connect
from seatrial_operator.kube.errors import MissingKindError
from seatrial_operator.kube.lease import Lease, LeaseLostError
from seatrial_operator.kube.patience import patiently
from seatrial_operator.kube.resources import RAY_JOBS, RLRUNS
from seatrial_operator.process import configure_logging, new_identity, own_namespace, until_signal
from seatrial_operator.registry.ecr import EcrClient
from seatrial_operator.registry.resolver import Resolver
from seatrial_operator.services.drivers import DriverClient
from seatrial_operator.services.pools import PoolService
from seatrial_operator.services.pull_secrets import PullSecrets
from seatrial_operator.services.runs import RunService
from seatrial_operator.services.worlds import WorldService

log = structlog.get_logger(__name__)


async def operate(config: OperatorConfig) -> None:
    """Run the operator until a signal ends it.

        probes ── cluster ── lease ── { watches ── keys ──▶ queue ──▶ reconcilers }

    While the API server does not answer, or lacks a kind that the operator needs, it waits and is not ready. kopf ends
    the watches on a signal; then keys in work are cancelled, the lease is let go, and connections are closed.

    Raises:
        InvalidInputError: if there are no credentials.
        LeaseLostError: if another operator may act from now on.
    """
    readiness = Readiness()
    async with (
        probes(health_port=config.health_port, metrics_port=config.metrics_port, readiness=readiness),
        connect() as client,
        aiohttp.ClientSession() as session,
    ):
        await patiently(lambda: _check_kinds(client), readiness.wait_for)
        reconcilers = _reconcilers(client, session, config)
        lease = Lease(client, config.lease, config.lease.namespace or own_namespace(), new_identity())
        readiness.reached()
        await lease.run(lambda: _work(reconcilers, config))


async def _work(reconcilers: Sequence[Reconciler], config: OperatorConfig) -> None:
    controller = Controller(reconcilers, workers=config.workers, resync_seconds=config.resync_seconds)
    watches = [one for reconciler in reconcilers for one in reconciler.watches]
    async with asyncio.TaskGroup() as tasks:
        reconciling = tasks.create_task(controller.run(), name="controller")
        await watch(watches, controller.enqueue, config.namespaces)
        reconciling.cancel()


def _reconcilers(client: KubeClient, session: aiohttp.ClientSession, config: OperatorConfig) -> list[Reconciler]:
    drivers = DriverClient(session, config.driver_timeout_seconds)
    runs = RunService(client, drivers, config)
    ecr = EcrClient()
    resolver = Resolver(session, ecr, tuple(config.registries.plain_http))
    return [
        runs,
        PoolService(client, session, runs, config),
        WorldService(client, resolver, PullSecrets(client, ecr), config),
    ]


async def _check_kinds(client: KubeClient) -> None:
    for resource, owner in ((RLRUNS, "this chart's CRDs"), (RAY_JOBS, "KubeRay")):
        if not await client.serves(resource):
            detail = f"the cluster has none; install {owner}"
            raise MissingKindError(request=f"discover {resource.plural}.{resource.group}", detail=detail)


def main() -> int:
    """Entry point; 1 if another operator took over, 2 if the operator cannot be started as it is set up."""
    configure_logging()
    try:
        asyncio.run(until_signal(operate(load_config())))
    except InvalidInputError as exc:
        log.error("the operator cannot be started", error=str(exc))  # noqa: TRY400  the sentence suffices
        return 2
    except LeaseLostError as exc:
        log.error("the operator ends", error=str(exc))  # noqa: TRY400  the sentence suffices
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
