"""Carries out what a pool wants sent, and tells the pool how it went."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import assert_never

import structlog

from seatrial_api.clock import Clock, Deadline
from seatrial_api.sandboxes import (
    CLAIMED_AT_ANNOTATION,
    RESTARTS_ANNOTATION,
    RUN_ANNOTATION,
    STATE_LABEL,
    TRIAL_LABEL,
)
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import AlreadyExistsError, KubeError, NotFoundError, RefusedError, StaleError
from seatrial_operator.kube.resources import PODS
from seatrial_operator.manifests.names import Manifest
from seatrial_operator.manifests.sandbox_pod import named
from seatrial_operator.sandboxes.core.actions import Action, Bind, Create, Delete, Look
from seatrial_operator.sandboxes.core.failures import Failure, FailureKind
from seatrial_operator.sandboxes.core.pods import read_sandbox
from seatrial_operator.sandboxes.core.pool import Pool

log = structlog.get_logger(__name__)

_AGAIN_SECONDS = 0.25
_QUIET_SECONDS = 0.02
"""Time without a claim after which it is taken that none comes."""
_COURTESY_SECONDS = 0.25
"""Time for which a creation lets claims go first, at most."""
_REFUSED_SECONDS = 10.0
_IN_USE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""A warm sandbox may be moved, one in use may not."""


@dataclass
class Requests:
    """The requests of one pool.

    A creation costs the API server four writes and nobody waits for it while there are warm sandboxes, so creations
    wait for each other, and one by one for a moment without claims.
    """

    client: KubeClient
    namespace: str
    pool: Pool
    recipe: Callable[[], Manifest | None]
    """How a pod is made now."""
    creations: asyncio.Semaphore
    clock: Clock
    wall: Callable[[], float]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _num_binding: int = 0
    _bound_at: float = 0.0
    """When the newest claim was sent or answered."""

    async def carry_out(self, action: Action) -> None:
        """Send one request and tell the pool what came of it."""
        match action:
            case Bind():
                with self._claiming():
                    await self._bind(action)
            case Look():
                await self._look(action)
            case Create():
                async with self.creations:
                    await self._let_claims_go_first()
                    await self._create(action)
            case Delete():
                await self._delete(action)
            case _:
                assert_never(action)

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        self._num_binding, self._bound_at = self._num_binding + 1, self.clock.now()
        try:
            yield
        finally:
            self._num_binding, self._bound_at = self._num_binding - 1, self.clock.now()

    async def _let_claims_go_first(self) -> None:
        async with self._turn:
            deadline = Deadline.after(_COURTESY_SECONDS, self.clock)
            while self._is_claimed_from() and deadline.remaining > 0:
                await self.clock.sleep(_QUIET_SECONDS)

    def _is_claimed_from(self) -> bool:
        """Whether claims come in and there are warm sandboxes for all of them."""
        is_quiet = not self._num_binding and self.clock.now() >= self._bound_at + _QUIET_SECONDS
        return not is_quiet and not self.pool.claims.num_waiting

    async def _bind(self, action: Bind) -> None:
        pod, wall = action.pod, self.wall()
        if action.again:
            await self.clock.sleep(_AGAIN_SECONDS)
        metadata = {
            "uid": pod.uid,
            "resourceVersion": str(pod.version),
            "labels": {STATE_LABEL: "claimed", TRIAL_LABEL: action.trial},
            "annotations": {
                RUN_ANNOTATION: action.run,
                CLAIMED_AT_ANNOTATION: datetime.fromtimestamp(wall, UTC).isoformat(),
                RESTARTS_ANNOTATION: str(pod.restarts),
                **_IN_USE,
            },
        }
        try:
            answer = await self.client.patch_metadata(PODS, self.namespace, pod.name, metadata)
        except (StaleError, NotFoundError) as exc:
            log.debug("a sandbox is not as it was known", pod=pod.name, trial=action.trial, error=str(exc))
            self.pool.bindings.refused(pod.name, action.trial, self.clock.now())
        except RefusedError as exc:
            log.error("may not claim a sandbox", pod=pod.name, trial=action.trial, error=str(exc))  # noqa: TRY400
            self.pool.bindings.refused(pod.name, action.trial, self.clock.now())
        except KubeError as exc:
            log.warning("cannot tell whether a sandbox is claimed", pod=pod.name, trial=action.trial, error=str(exc))
            self.pool.bindings.unknown(action)
        else:
            version = int(answer["metadata"]["resourceVersion"])
            self.pool.bindings.bound(pod.name, action.trial, version, self.clock.now(), wall)

    async def _look(self, action: Look) -> None:
        try:
            found = await self.client.find(PODS, self.namespace, action.name)
        except KubeError as exc:
            log.warning("cannot look at a sandbox", pod=action.name, error=str(exc))
            await self.clock.sleep(_AGAIN_SECONDS)
            self.pool.unknown(action)
            return
        pod = read_sandbox(found) if found else None
        self.pool.bindings.looked(action.name, action.trial, pod, self.clock.now(), self.wall())

    async def _create(self, action: Create) -> None:
        if action.again:
            await self.clock.sleep(_AGAIN_SECONDS)
        recipe = self.recipe()
        if recipe is None:
            gone = Failure(FailureKind.WORLD, f"the world {self.pool.world} is gone")
            self.pool.supply.refused(action.name, gone, self.clock.now())
            return
        try:
            answer = await self._make(action.name, recipe)
        except (RefusedError, NotFoundError) as exc:
            log.warning("the API server refuses a sandbox", pod=action.name, error=str(exc))
            refused = Failure(FailureKind.QUOTA, f"the API server refuses a sandbox of {self.pool.world}: {exc.detail}")
            self.pool.supply.refused(action.name, refused, self.clock.now())
        except KubeError as exc:
            log.warning("cannot tell whether a sandbox was made", pod=action.name, error=str(exc))
            self.pool.supply.unknown(action.name)
        else:
            self.pool.supply.created(action.name, answer)

    async def _make(self, name: str, recipe: Manifest) -> int | None:
        """The version of the new pod; none if it was made before and is gone again."""
        try:
            made = await self.client.create(PODS, self.namespace, named(recipe, name), metadata_only=True)
        except AlreadyExistsError:
            found = await self.client.find(PODS, self.namespace, name)
            return int(found["metadata"]["resourceVersion"]) if found else None
        return int(made["metadata"]["resourceVersion"])

    async def _delete(self, action: Delete) -> None:
        if action.again:
            await self.clock.sleep(_AGAIN_SECONDS)
        try:
            await self.client.delete(PODS, self.namespace, action.name, uid=action.uid)
        except StaleError:
            return  # another pod of that name: ours is gone
        except RefusedError as exc:
            log.error("may not delete a sandbox", pod=action.name, error=str(exc))  # noqa: TRY400
            await self.clock.sleep(_REFUSED_SECONDS)
            self.pool.unknown(action)
        except KubeError as exc:
            log.warning("cannot tell whether a sandbox was deleted", pod=action.name, error=str(exc))
            self.pool.unknown(action)
