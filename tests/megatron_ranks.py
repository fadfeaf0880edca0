"""Two policy ranks on megatron-core, which run one layout after another and write down what they saw."""

import multiprocessing
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seatrial_api.spec.algorithm import LossSpec
from seatrial_trainer.policy.backends import start_backend
from seatrial_trainer.policy.batch import Minibatch, TrainingSequence
from seatrial_trainer.policy.protocol import PolicyBackend
from seatrial_trainer.policy.ranks import Ranks, connect_store, open_store
from seatrial_trainer.policy.setup import PolicySetup

NUM_RANKS = 2
NUM_STEPS = 3
LEARNING_RATE = 1e-2
_SECONDS = 400.0


@dataclass(frozen=True)
class Case:
    """One layout of one model."""

    name: str
    setup: PolicySetup
    model: Path
    minibatch: Minibatch
    sequences: list[list[int]]
    load: str | None = None
    """Name of an earlier case whose checkpoint it goes on from."""
    measures_width: bool = False
    """Whether the first step's tensors are looked at."""

    @classmethod
    def of(
        cls, name: str, setup: PolicySetup, model: Path, sequences: Sequence[TrainingSequence], load: str | None = None
    ) -> Self:
        """A case that trains on sequences and asks for their probabilities."""
        return cls(name, setup, model, dppo(sequences), [sequence.token_ids for sequence in sequences], load)

    @property
    def untrained(self) -> str:
        """Folder of the weights before the first step."""
        return f"{self.name}-untrained"


@dataclass
class Seen:
    """What a policy gave."""

    logprobs: list[list[float]]
    reference: list[list[float]] = field(default_factory=list)
    """Under the initial weights, asked for after the steps."""
    steps: list[dict[str, float]] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    """After the steps."""
    next_steps: list[dict[str, float]] = field(default_factory=list)
    """The step after those, and the same again from the checkpoint before it."""
    width: int = 0
    """Last dimension of the widest matrix that a step made, where it was measured."""


class Width(TorchDispatchMode):
    """Looks at every matrix that is made, in backward passes and exchanges too."""

    def __init__(self) -> None:
        super().__init__()
        self.widest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor) and made.is_floating_point() and made.ndim > 1:
                self.widest = max(self.widest, made.shape[-1])
        return result


def look(backend: PolicyBackend, case: Case, folder: Path) -> Seen:
    """Take some steps, save, take another, load, take it again."""
    if case.load is not None:
        backend.load(folder / case.load)
    else:
        backend.export(folder / case.untrained)
    seen = Seen(backend.logprobs(case.sequences))
    with Width() if case.measures_width else nullcontext() as measure:
        seen.steps = [step(backend, case.minibatch)]
    seen.width = measure.widest if measure else 0
    seen.steps += [step(backend, case.minibatch) for _ in range(NUM_STEPS - 1)]
    seen.reference = backend.logprobs(case.sequences, reference=True)
    backend.save(folder / case.name)
    seen.weights = {name: tensor.clone() for name, tensor in backend.export_weights()}
    seen.next_steps.append(step(backend, case.minibatch))
    backend.load(folder / case.name)
    seen.next_steps.append(step(backend, case.minibatch))
    return seen


def step(backend: PolicyBackend, minibatch: Minibatch) -> dict[str, float]:
    """One optimiser step's figures."""
    stats, optim = backend.forward_backward(minibatch), backend.optim_step(LEARNING_RATE)
    told = {name: getattr(stats, name) for name in ("loss", "entropy", "logprob_abs_diff_max", "kl_to_reference")}
    return {**told, "num_tokens": stats.num_tokens, "grad_norm": optim.grad_norm}


def flat(rows: list[list[float]]) -> list[float]:
    """Values of all sequences, one after the other."""
    return [value for row in rows for value in row]


def dppo(sequences: Sequence[TrainingSequence]) -> Minibatch:
    """A mini-batch with a penalty on its first half."""
    half = len(sequences) // 2
    penalised = [replace(sequence, kl_coefficient=0.05) for sequence in sequences[:half]]
    return Minibatch([*penalised, *sequences[half:]], LossSpec(name="dppo", low=0.15, high=0.15))


def run(cases: list[Case], folder: Path) -> dict[str, Seen]:
    """What each case gave, from two processes."""
    context = multiprocessing.get_context("spawn")
    store = open_store("127.0.0.1", timeout_seconds=_SECONDS)
    ranks = [context.Process(target=_rank, args=(rank, store.port, cases, folder)) for rank in range(NUM_RANKS)]
    try:
        for process in ranks:
            process.start()
        _join(ranks)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    seen: dict[str, Seen] = torch.load(folder / "seen.pt", weights_only=False)
    return seen


def _join(ranks: Sequence[BaseProcess]) -> None:
    """Wait for all, or for the first that fails, since the others would wait for it."""
    running = {process.sentinel: process for process in ranks}
    while running and (ended := wait(list(running), timeout=_SECONDS)):
        if any(running[sentinel].exitcode for sentinel in ended if isinstance(sentinel, int)):
            return
        running = {sentinel: process for sentinel, process in running.items() if sentinel not in ended}


def _rank(rank: int, port: int, cases: list[Case], folder: Path) -> None:
    torch.set_num_threads(1)
    store = connect_store("127.0.0.1", port, timeout_seconds=_SECONDS)
    ranks = Ranks.join(rank, NUM_RANKS, store, timeout_seconds=_SECONDS)
    seen = {}
    for case in cases:
        backend = start_backend(case.setup, case.model, ranks)
        from megatron.core import parallel_state  # noqa: PLC0415  the backend has made it importable

        seen[case.name] = look(backend, case, folder)
        parallel_state.destroy_model_parallel()
    if rank == 0:
        torch.save(seen, folder / "seen.pt")
    dist.barrier()
