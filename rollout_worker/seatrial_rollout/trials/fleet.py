"""The driver's side of all trial hosts."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from seatrial_api.errors import WaitTimeoutError
from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.outcomes import unfinished
from seatrial_rollout.trials.request import TrialRequest
from seatrial_rollout.trials.spawn import HostConfig

_START_SECONDS = 180.0
_STOP_SECONDS = 45.0
_WORD_SECONDS = 70.0
"""Longer than a host tries to be heard by a broker."""
_ANSWER_GRACE_SECONDS = 60.0
"""Past the wall deadline a host kills the trial and says so; a host that does not is itself broken."""
_MAX_TRIALS_PER_HOST = 4096
"""Ray's bound on concurrent calls; the real bound is the scheduler's."""

_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Member:
    """One trial host actor."""

    actor: Any
    started: Any
    """Ray's promise that it can fork trials."""
    is_up: bool = False
    trial_ids: set[str] = field(default_factory=set)

    async def wait_started(self) -> str:
        """Return when it can fork trials: where its sandboxes are, and what keeps them apart."""
        sandbox: str = await self.started
        self.is_up = True
        return sandbox


class TrialFleet:
    """Dispatches trials to the least loaded of several `TrialHost` actors and replaces those that die.

    A trial on a host that dies ends as `HarnessFailed`, which is infrastructure: the scheduler retries it.
    Shutdown: `stop` ends every trial, every host process and the actors, in that order.
    """

    def __init__(self, config: HostConfig, num_hosts: int, actor_options: Mapping[str, Any] | None = None) -> None:
        """Plan a fleet.

        Args:
            config: The same for every host.
            num_hosts: Number of actors.
            actor_options: Ray's options for them: resources, scheduling strategy.
        """
        self._config = config
        self._num_hosts = num_hosts
        self._actor_options = {"num_cpus": 0, **(actor_options or {}), "max_concurrency": _MAX_TRIALS_PER_HOST}
        self._members: list[_Member] = []
        self.sandbox = ""
        """Where trials run, and what keeps them apart, as the hosts found when they started: `local, isolated`."""

    async def start(self) -> None:
        """Create the hosts and wait until each can fork trials.

        Raises:
            WaitTimeoutError: if one does not come up.
            TransientError: if one fails to.
            InvalidInputError: if a harness, or what sandboxes need, is not there.
        """
        from ray.exceptions import RayTaskError  # noqa: PLC0415  only where Ray runs

        self._members = [self._create() for _ in range(self._num_hosts)]
        try:
            async with asyncio.timeout(_START_SECONDS):
                found = {await member.wait_started() for member in self._members}
        except TimeoutError:
            raise WaitTimeoutError(waiting_for="the trial hosts", seconds=_START_SECONDS) from None
        except RayTaskError as error:  # wraps what was raised there, with a traceback that is not for people
            raise error.cause from error
        self.sandbox = "; ".join(sorted(found))

    @property
    def num_in_flight(self) -> int:
        """Trials that were handed out and have not come back."""
        return sum(len(member.trial_ids) for member in self._members)

    async def run(self, request: TrialRequest) -> Trajectory:
        """Run one trial somewhere; never raises for a fault of the trial or of its host.

        Cancelling the call cancels the trial.
        """
        from ray.exceptions import RayError  # noqa: PLC0415  only where Ray runs

        if not self._members:
            return unfinished(request, Outcome.CANCELLED, "the trial hosts are not running")
        member = min(self._members, key=lambda candidate: len(candidate.trial_ids))
        member.trial_ids.add(request.trial_id)
        try:
            return await self._run_on(member, request)
        except (TimeoutError, RayError) as exc:
            reason = str(exc) or "it does not answer"
            self._replace(member, reason)
            return unfinished(request, Outcome.HARNESS_FAILED, f"the trial host died: {reason}")
        except asyncio.CancelledError:
            member.actor.cancel.remote(request.trial_id)
            raise
        finally:
            member.trial_ids.discard(request.trial_id)

    async def expect(self, trials: Mapping[str, int]) -> None:
        """Have sandboxes ready for trials that start soon; a word that does not get through is told and forgotten.

        Args:
            trials: How many, by world.
        """
        from ray.exceptions import RayError  # noqa: PLC0415

        member = next((one for one in self._members if one.is_up), None)
        if member is None:
            return
        try:
            async with asyncio.timeout(_WORD_SECONDS):
                await member.actor.expect.remote(dict(trials))
        except (TimeoutError, RayError) as exc:
            _log.warning("sandboxes are not asked for ahead of their trials", reason=str(exc) or "no host answers")

    async def cpu_seconds(self) -> float:
        """CPU time of all trials so far on the hosts that live."""
        return float(sum([await member.actor.cpu_seconds.remote() for member in self._members]))

    async def stop(self) -> None:
        """End every trial and every host; one that is still starting has nothing that it would have to end."""
        import ray  # noqa: PLC0415
        from ray.exceptions import RayError  # noqa: PLC0415

        members, self._members = self._members, []
        stops = [member.actor.stop.remote() for member in members if member.is_up]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                for stop in stops:
                    with contextlib.suppress(RayError):
                        await stop
        for member in members:
            ray.kill(member.actor)

    async def _run_on(self, member: _Member, request: TrialRequest) -> Trajectory:
        async with asyncio.timeout(_START_SECONDS):
            await member.wait_started()
        async with asyncio.timeout(request.harness.limits.wall_timeout_seconds + _ANSWER_GRACE_SECONDS):
            trajectory: Trajectory = await member.actor.run.remote(request)
        return trajectory

    def _create(self) -> _Member:
        import ray  # noqa: PLC0415

        actor = ray.remote(TrialHost).options(**self._actor_options).remote(self._config)
        return _Member(actor, actor.start.remote())

    def _replace(self, member: _Member, reason: str) -> None:
        import ray  # noqa: PLC0415

        if member in self._members:  # the first of its trials to notice does it
            _log.warning("trial host replaced", reason=reason, trials=len(member.trial_ids))
            self._members[self._members.index(member)] = self._create()
            ray.kill(member.actor)
