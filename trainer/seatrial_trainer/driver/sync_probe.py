"""Trials that are in flight while the weights change: what they sample next tells whether the sync arrived whole.

Synchronous training has no trial in flight when it syncs, asynchronous training always has: a request is held, the
weights are exchanged under it, and it goes on over keys and values of the old ones. Probes make that happen early,
where it costs little. Nothing of them is stored or trained.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.trajectory import TokenSequence, Trajectory
from seatrial_rollout.engine.metrics import PoolMetrics
from seatrial_rollout.trials.tasks import TaskRef
from seatrial_trainer.driver.context import StageContext
from seatrial_trainer.driver.stopping import unless_stopped
from seatrial_trainer.driver.trials import TrialProfile
from seatrial_trainer.scheduling.dispatcher import TrialDispatcher
from seatrial_trainer.scheduling.ticket import TrialTicket

_LOOK_SECONDS = 0.02
"""A small model's answer takes a tenth of a second, and the sync has to come in the middle of one."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Tokens that trials sampled after weights changed under them."""

    num_tokens: int = 0
    logprob_abs_diff_mean: float | None = None
    """Mean of |log pi_rollout - log pi_train| under the new weights; none if no trial was in flight."""


@dataclass
class SyncProbe:
    """Keeps a few trials in flight across the first syncs of a stage."""

    context: StageContext
    tasks: Sequence[TaskRef]
    num_syncs: int
    """How many of the first syncs are looked at."""
    num_trials: int = 4
    """Trials in flight at once."""
    found: dict[int, InFlight] = field(default_factory=dict)
    """By the version that a sync brought."""

    @asynccontextmanager
    async def across(self, dispatcher: TrialDispatcher, version: int) -> AsyncIterator[None]:
        """Have trials in flight when the block begins to sync, and see what they sampled afterwards.

        Args:
            dispatcher: Runs the trials.
            version: The version that the block's sync brings.

        Raises:
            StopRequestedError: if the driver was asked to stop before a trial sampled.
        """
        if version > self.num_syncs:
            yield
            return
        (await self.context.cluster.rollout()).trials.prepare(
            self._purpose, TrialProfile.training(self.context.spec), self.tasks
        )
        num_sampled = (await self._engines()).generated_tokens_total
        is_synced = asyncio.Event()
        ended: list[Trajectory] = []
        async with asyncio.TaskGroup() as group:
            places = [
                group.create_task(self._keep_busy(dispatcher, version, place, is_synced, ended))
                for place in range(self.num_trials)
            ]
            try:
                await unless_stopped(self.context.stop, self._wait_until_sampling(num_sampled, places))
                yield
            finally:
                is_synced.set()
        self.found[version] = await self._compare(ended, version)

    @property
    def _purpose(self) -> str:
        return f"{self.context.stage.name}-probe"

    async def _keep_busy(
        self, dispatcher: TrialDispatcher, version: int, place: int, is_synced: asyncio.Event, ended: list[Trajectory]
    ) -> None:
        """One trial after the other in one place, until one of them has seen the sync or infrastructure ended it."""
        slot = 0
        while not is_synced.is_set():
            task = self.tasks[(place + slot) % len(self.tasks)]
            group_id = f"{self._purpose}-v{version}-p{place}"
            ticket = TrialTicket(group_id, slot, task.name, task.domain, self._purpose, start_version=version - 1)
            async for trajectory in dispatcher.run_all([ticket]):
                ended.append(trajectory)
                if trajectory.outcome.is_infrastructure:
                    return
            slot += 1

    async def _wait_until_sampling(self, num_sampled: int, places: Sequence[asyncio.Task[None]]) -> None:
        """Wait until a trial is in the middle of an answer; in vain if none comes to that in the time of its setup."""
        deadline = Deadline.after(self.context.spec.harness.limits.setup_timeout_seconds, SYSTEM_CLOCK)
        while deadline.remaining > 0 and not all(place.done() for place in places):
            engines = await self._engines()
            if engines.running and engines.generated_tokens_total > num_sampled:
                return
            await SYSTEM_CLOCK.sleep(_LOOK_SECONDS)

    async def _engines(self) -> PoolMetrics:
        return await (await self.context.cluster.rollout()).pool.metrics()

    async def _compare(self, trajectories: Sequence[Trajectory], version: int) -> InFlight:
        sequences = [
            sequence
            for trajectory in trajectories
            for sequence in trajectory.sequences
            if {version - 1, version} <= set(sequence.weight_versions)
        ]
        if not sequences:
            return InFlight()
        policy = await self.context.cluster.policy()
        trained = await policy.logprobs([sequence.token_ids for sequence in sequences])
        differences = [
            abs(sequence.logprobs[i] - logprobs[i])
            for sequence, logprobs in zip(sequences, trained, strict=True)
            for i in _sampled_by(sequence, version)
        ]
        return InFlight(len(differences), sum(differences) / len(differences))


def _sampled_by(sequence: TokenSequence, version: int) -> Iterator[int]:
    """Places of the tokens that a version sampled."""
    columns = zip(sequence.loss_mask, sequence.weight_versions, strict=True)
    return (i for i, (is_sampled, by) in enumerate(columns) if is_sampled and by == version)
