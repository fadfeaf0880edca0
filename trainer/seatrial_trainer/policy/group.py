"""The driver's handle on the policy: all ranks as one object with asynchronous methods."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import RayActorError, RayTaskError

from seatrial_api.errors import WaitTimeoutError
from seatrial_rollout.object_store.handover import SHARED_FOLDER, SharedFolder
from seatrial_trainer.policy.actor import WRITING, PolicyActor
from seatrial_trainer.policy.batch import Minibatch, OptimStats, StepStats
from seatrial_trainer.policy.errors import PolicyRankLostError
from seatrial_trainer.policy.gang import Gang
from seatrial_trainer.policy.setup import PolicySetup

BLAME_SECONDS = 5.0
"""After one rank failed, so long the others may take to say why: a survivor's broken exchange hides a death."""


class PolicyGroup:
    """Every rank of the policy, called together.

    Each call has a deadline and ends in one of three ways: a result, the error that the backend raised, or an
    error of ours that says which rank died or what was waited for. After a rank died the group is of no more use:
    stop it, start another and load a checkpoint.
    """

    def __init__(
        self, actors: Sequence[Any], gang: Gang, *, timeout_seconds: float, files: SharedFolder = SHARED_FOLDER
    ) -> None:
        self._actors = list(actors)
        self._gang = gang
        self._timeout_seconds = timeout_seconds
        self._files = files

    @classmethod
    async def start(
        cls,
        setup: PolicySetup,
        model_path: Path,
        *,
        timeout_seconds: float = 600.0,
        actor_options: dict[str, Any] | None = None,
        files: SharedFolder = SHARED_FOLDER,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Start the ranks and load the model in each.

        Args:
            setup: What to build; `PolicySetup.from_run` takes it from a run.
            model_path: Model directory, on a path that every rank sees.
            timeout_seconds: Deadline of this and of every later call.
            actor_options: Ray options of each rank's actor, such as resources that place it on training nodes; all
                ranks get their places together.
            files: How the ranks' files reach this process, and its files reach them.
            environment: Variables that the ranks' processes get and others do not, such as a service's key.

        Raises:
            InvalidInputError: the backend is not available, Ray is too small for the ranks, or the model cannot be
                loaded.
            PolicyRankLostError: a rank died.
            WaitTimeoutError: the ranks were not ready in time.
        """
        num_ranks = setup.trainer.ranks
        options = _default_options() | (actor_options or {})
        if setup.trainer.backend == "tinker":
            options |= {"num_cpus": 1, "num_gpus": 0}  # it computes elsewhere
        gang = await Gang.reserve(num_ranks, options, timeout_seconds=timeout_seconds)
        remote = ray.remote(concurrency_groups={WRITING: 1})(PolicyActor)
        actors = [remote.options(**gang.options(rank)).remote(rank, files, environment) for rank in range(num_ranks)]
        group = cls(actors, gang, timeout_seconds=timeout_seconds, files=files)
        try:
            meeting_point = None
            if num_ranks > 1:
                (meeting_point,) = await group._wait([group._actors[0].listen.remote(timeout_seconds)], "listen")
            await group._wait(
                [actor.start.remote(setup, model_path, meeting_point, timeout_seconds) for actor in group._actors],
                "start",
            )
        except BaseException:
            group.stop()
            raise
        return group

    @property
    def ranks(self) -> list[Any]:
        """The actors, by rank: what carries weights to engines reaches them directly."""
        return list(self._actors)

    async def forward_backward(self, minibatch: Minibatch) -> StepStats:
        """Accumulate gradients of a mini-batch."""
        result: StepStats = (await self._on_all("forward_backward", ray.put(minibatch)))[0]
        return result

    async def optim_step(self, learning_rate: float) -> OptimStats:
        """Clip, step, zero the gradients."""
        result: OptimStats = (await self._on_all("optim_step", learning_rate))[0]
        return result

    async def train_minibatch(self, minibatch: Minibatch, learning_rate: float) -> tuple[StepStats, OptimStats]:
        """One optimiser step."""
        result: tuple[StepStats, OptimStats] = (
            await self._on_all("train_minibatch", ray.put(minibatch), learning_rate)
        )[0]
        return result

    async def logprobs(self, sequences: list[list[int]], *, reference: bool = False) -> list[list[float]]:
        """Log probability of each token given those before it (0 for the first), at T=1."""
        result: list[list[float]] = (await self._on_all("logprobs", ray.put(sequences), reference))[0]
        return result

    async def hold(self, state: Path, model: Path) -> Callable[[], Awaitable[None]]:
        """Take weights, optimiser and random state of all ranks as they are now; training may go on when this returns.

        Args:
            state: Folder for what `load` restores; the caller's to make atomic.
            model: Folder for what engines read.

        Returns:
            What writes them, beside all other calls; to be awaited before the next `hold`.
        """
        await self._on_all("hold", state, model)

        async def write() -> None:
            refs = [actor.write_held.options(concurrency_group=WRITING).remote() for actor in self._actors]
            await self._wait(refs, "write_held")
            for folder in (state, model):
                await asyncio.to_thread(self._files.collect, folder)

        return write

    async def load(self, directory: Path) -> None:
        """Restore what `hold` took, bitwise.

        Raises:
            CorruptionError: a file is missing, damaged or of another model.
        """
        await self._on_all("load", directory)

    async def export(self, directory: Path) -> int:
        """Write a model directory that engines read, whole or not at all; returns its weights' bytes."""
        num_bytes, *_ = await self._on_all("export", directory)
        await asyncio.to_thread(self._files.collect, directory)
        return int(num_bytes)

    def stop(self) -> None:
        """End every rank's process; safe to repeat."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()
        self._gang.release()

    async def _on_all(self, method: str, *args: Any) -> list[Any]:
        return await self._wait([getattr(actor, method).remote(*args) for actor in self._actors], method)

    async def _wait(self, refs: list[Any], during: str) -> list[Any]:
        """The results of one call on the first ranks, rank by rank.

        Raises:
            PolicyRankLostError: a rank died, whatever the others said about it.
            WaitTimeoutError: a rank was not done in time.
        """
        futures = [asyncio.wrap_future(ref.future()) for ref in refs]
        try:
            done, _ = await asyncio.wait(futures, timeout=self._timeout_seconds, return_when=asyncio.FIRST_EXCEPTION)
            if any(future.exception() for future in done):
                done, _ = await asyncio.wait(futures, timeout=BLAME_SECONDS)
        finally:
            for future in futures:
                future.cancel()
        errors = {rank: future.exception() for rank, future in enumerate(futures) if future in done}
        _raise_first({rank: error for rank, error in errors.items() if error is not None}, during)
        late = [rank for rank, future in enumerate(futures) if future not in done]
        if late:
            waiting_for = f"policy rank {', '.join(map(str, late))} to finish {during}"
            raise WaitTimeoutError(waiting_for=waiting_for, seconds=self._timeout_seconds)
        return [future.result() for future in futures]


def _raise_first(errors: dict[int, BaseException], during: str) -> None:
    """Raise the error that explains the others: a death before all."""
    for rank, error in errors.items():
        if isinstance(error, RayActorError):
            raise PolicyRankLostError(rank=rank, during=during, detail=str(error).splitlines()[0]) from error
    for error in errors.values():
        raise (error.cause or error if isinstance(error, RayTaskError) else error) from error


def _default_options() -> dict[str, Any]:
    """One core and one thread a rank on machines without GPUs; elsewhere one GPU a rank."""
    if ray.cluster_resources().get("GPU"):
        return {"num_gpus": 1}
    return {"num_cpus": 1, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}}
