"""Carrying out the actions of a run's plan, in order."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from seatrial_operator.config import OperatorConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import AlreadyExistsError
from seatrial_operator.kube.resources import RAY_JOBS, RLRUNS, ROLLOUT_POOLS, SECRETS, Object, ObjectKey
from seatrial_operator.manifests.checks import template_path
from seatrial_operator.manifests.names import job_name
from seatrial_operator.manifests.pool import rollout_pool
from seatrial_operator.manifests.rayjob import ray_job
from seatrial_operator.manifests.rehearsal import blame_ray_job, rehearsal, rehearsed_job, worker_roles
from seatrial_operator.manifests.secret import driver_request, request_secret
from seatrial_operator.plan.actions import (
    Action,
    ApplyPool,
    CreateJob,
    DeleteAttempt,
    DeleteRun,
    EnsureSecret,
    PutSettings,
    StopDriver,
)
from seatrial_operator.plan.digests import stages_text
from seatrial_operator.plan.observed import STAGES_ANNOTATION, RunObject
from seatrial_operator.services.drivers import DriverAddress, DriverClient, DriverSilentError
from seatrial_operator.services.observing import RunObserver
from seatrial_operator.services.rehearsing import Rehearsal, rehearse
from seatrial_operator.services.run_store import RunStore

log = structlog.get_logger(__name__)

_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class RunApplier:
    """Carries out actions; each may be carried out again, and nothing is lost if it ends after any of them."""

    client: KubeClient
    drivers: DriverClient
    store: RunStore
    observer: RunObserver
    config: OperatorConfig

    async def apply(self, key: ObjectKey, run: RunObject, actions: Sequence[Action]) -> None:
        """Carry out `actions` in order.

        Raises:
            DriverSilentError: if the driver did not take what it was sent; what comes after is not carried out.
            KubeError: as the tree says; what comes after is not carried out.
        """
        for action in actions:
            log.debug("acting", action=type(action).__name__)
            await self._act(key, run, action)

    async def _act(self, key: ObjectKey, run: RunObject, action: Action) -> None:
        match action:
            case ApplyPool(keeps_sandboxes=keeps):
                pool = rollout_pool(run.run, run.uid, keeps_sandboxes=keeps)
                await self.client.apply(ROLLOUT_POOLS, key.namespace, pool)
            case CreateJob():
                await self._create_job(key, run, action)
            case EnsureSecret():
                await self._ensure_secret(key, run, action)
            case DeleteAttempt(segment=segment, attempt=attempt):
                name = job_name(key.name, segment, attempt)
                await self.client.delete(SECRETS, key.namespace, name)
                await self.client.delete(RAY_JOBS, key.namespace, name, foreground=True)
            case PutSettings(settings=settings):
                await self.drivers.put_settings(self._address(key, run), settings)
            case StopDriver():
                await self.drivers.stop(self._address(key, run))
            case DeleteRun():
                await self.client.delete(RLRUNS, key.namespace, key.name, uid=run.uid)
            case _:
                assert_never(action)

    async def _create_job(self, key: ObjectKey, run: RunObject, action: CreateJob) -> None:
        await rehearse(self.client, key.namespace, self._rehearsal(run))
        manifest = ray_job(run.run, run.uid, action.segment, action.attempt, self.config)
        given = [stage for stage in run.spec.stages if stage.name in action.segment.stages]
        manifest["metadata"].setdefault("annotations", {})[STAGES_ANNOTATION] = stages_text(given)
        try:
            made = await self.client.create(RAY_JOBS, key.namespace, manifest)
        except AlreadyExistsError:
            made = await self.client.get(RAY_JOBS, key.namespace, manifest["metadata"]["name"])
            if not _is_owned_by(made, run.uid):
                raise
        self.store.keep_job(key, made)

    def _rehearsal(self, run: RunObject) -> Rehearsal:
        templates = rehearsal(run.run, run.uid, self.config, only_shaped=True)
        return Rehearsal(
            [(template_path(role), template) for role, template in templates.items()],
            RAY_JOBS,
            lambda: rehearsed_job(run.run, run.uid, self.config),
            lambda words: blame_ray_job(words, worker_roles(run.run)),
        )

    async def _ensure_secret(self, key: ObjectKey, run: RunObject, action: EnsureSecret) -> None:
        name = job_name(key.name, action.segment.index, action.attempt)
        found = await self.client.find(SECRETS, key.namespace, name)
        if found is not None:
            if not _is_owned_by(found, run.uid):
                raise AlreadyExistsError(request=f"create secrets/{name}", detail="another object has one of this name")
            return
        request = driver_request(run.run, run.uid, action.segment, self.config, resume=action.resume)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        manifest = request_secret(run.run, run.uid, action.segment, action.attempt, request, token)
        await self.client.create(SECRETS, key.namespace, manifest)

    def _address(self, key: ObjectKey, run: RunObject) -> DriverAddress:
        address = self.observer.address(key, run)
        if address is None:
            raise DriverSilentError(f"nobody knows yet where the driver of {key} answers")
        return address


def _is_owned_by(item: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences") or [])
