"""One policy rank in a process of its own."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from seatrial_rollout.object_store.handover import SHARED_FOLDER, SharedFolder
from seatrial_trainer.policy.batch import Minibatch, OptimStats, StepStats
from seatrial_trainer.policy.setup import PolicySetup

WRITING = "writing"
"""Ray's concurrency group for what a rank writes while it trains."""


class PolicyActor:
    """The backend of one rank as a Ray actor; a method returns when its work is done.

    torch is imported when the rank starts, so that handling the class costs the driver nothing.
    """

    def __init__(
        self, rank: int, files: SharedFolder = SHARED_FOLDER, environment: Mapping[str, str] | None = None
    ) -> None:
        """Make a rank; nothing is loaded.

        Args:
            rank: Its number, from 0.
            files: How its files reach the driver, and the driver's reach it.
            environment: Variables that this process gets and others do not, such as a service's key.
        """
        os.environ.update(environment or {})
        self._rank = rank
        self._files = files
        self._sender: Any = None
        self._held: Any = None

    def listen(self, timeout_seconds: float) -> tuple[str, int]:
        """Open the store where the ranks meet; rank 0 only. Returns host and port."""
        from seatrial_trainer.policy.ranks import open_store  # noqa: PLC0415  imports torch

        host = self.node_address()
        self._store = open_store(host, timeout_seconds=timeout_seconds)
        return host, self._store.port

    def start(
        self,
        setup: PolicySetup,
        model_path: Path,
        meeting_point: tuple[str, int] | None,
        timeout_seconds: float,
    ) -> None:
        """Load the model and join the other ranks.

        Args:
            setup: What to build.
            model_path: Model directory, on a path that every rank sees.
            meeting_point: Host and port of rank 0's store; none for a policy of one rank.
            timeout_seconds: Deadline of joining and of every exchange between ranks.
        """
        import torch  # noqa: PLC0415  heavy
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415  heavy

        from seatrial_trainer.policy.backends import start_backend  # noqa: PLC0415  imports torch
        from seatrial_trainer.policy.ranks import Ranks, connect_store  # noqa: PLC0415  imports torch

        disable_progress_bar()
        if not torch.cuda.is_available():
            torch.set_num_threads(1)
        ranks = Ranks()
        if meeting_point is not None:
            store = self._store if self._rank == 0 else connect_store(*meeting_point, timeout_seconds=timeout_seconds)
            ranks = Ranks.join(self._rank, setup.trainer.ranks, store, timeout_seconds=timeout_seconds)
        self._backend = start_backend(setup, model_path, ranks)

    def forward_backward(self, minibatch: Minibatch) -> StepStats:
        """See `PolicyBackend`."""
        return self._backend.forward_backward(minibatch)

    def optim_step(self, learning_rate: float) -> OptimStats:
        """See `PolicyBackend`."""
        return self._backend.optim_step(learning_rate)

    def train_minibatch(self, minibatch: Minibatch, learning_rate: float) -> tuple[StepStats, OptimStats]:
        """One optimiser step."""
        return self._backend.forward_backward(minibatch), self._backend.optim_step(learning_rate)

    def logprobs(self, sequences: list[list[int]], reference: bool) -> list[list[float]]:
        """See `PolicyBackend`."""
        return self._backend.logprobs(sequences, reference=reference)

    def hold(self, state: Path, model: Path) -> None:
        """See `PolicyBackend`; `write_held` does the rest."""
        with ExitStack() as sending:
            folders = [sending.enter_context(self._files.sending(folder)) for folder in (state, model)]
            self._held = self._backend.hold(*folders), sending.pop_all()

    def write_held(self) -> None:
        """Write what `hold` took, and let go of it; in the concurrency group `WRITING`."""
        (write, sending), self._held = self._held, None
        with sending:
            write()

    def load(self, directory: Path) -> None:
        """See `PolicyBackend`."""
        with self._files.bringing(directory) as folder:
            self._backend.load(folder)

    def export(self, directory: Path) -> int:
        """Take part in writing a model directory for engines; returns the bytes of what this rank wrote."""
        with self._files.sending(directory) as folder:
            return self._backend.export(folder)

    def node_address(self) -> str:
        """Address of this rank's node."""
        import ray  # noqa: PLC0415  only inside the actor's process

        return str(ray.util.get_node_ip_address())

    def weight_sender(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call this rank's `WeightSender`, which carries weights to the engines; the first call makes it."""
        from seatrial_trainer.weight_sync.sender import WeightSender  # noqa: PLC0415  imports torch

        if self._sender is None:
            self._sender = WeightSender(self._backend.export_weights, rank=self._rank)
        return getattr(self._sender, method)(*args, **kwargs)
