"""Policy ranks of the torch backend in processes of their own, which go through one case after another."""

import multiprocessing
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from seatrial_trainer.policy.ranks import Ranks, connect_store, open_store
from seatrial_trainer.policy.torch_backend import TorchBackend
from tests.megatron_ranks import Case, Seen, look

_SECONDS = 480.0


@dataclass
class Parts:
    """What the ranks saw of a case."""

    seen: Seen
    """By rank 0."""
    held: list[int] = field(default_factory=list)
    """Numbers that each rank has of weights, and as many again of each moment."""
    gradient: list[int] = field(default_factory=list)
    """And of the gradient."""


def run(cases: list[Case], folder: Path, num_ranks: int) -> dict[str, Parts]:
    """What each case gave."""
    context = multiprocessing.get_context("spawn")
    store = open_store("127.0.0.1", timeout_seconds=_SECONDS)
    arguments = (store.port, cases, folder, num_ranks)
    processes = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(num_ranks)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(_SECONDS)
    finally:
        for process in processes:
            process.kill()
            process.join()
    found: dict[str, Parts] = torch.load(folder / f"parts-{num_ranks}.pt", weights_only=False)
    return found


def _rank(rank: int, port: int, cases: list[Case], folder: Path, num_ranks: int) -> None:
    torch.set_num_threads(1)
    store = connect_store("127.0.0.1", port, timeout_seconds=_SECONDS)
    ranks = Ranks.join(rank, num_ranks, store, timeout_seconds=_SECONDS)
    found = {}
    for case in cases:
        backend = TorchBackend(case.setup, case.model, ranks)
        parts = Parts(look(backend, case, folder))
        weights = backend._weights
        parts.held = ranks.gather(sum(own.to_local().numel() for own in backend._model.module.parameters()))
        parts.gradient = ranks.gather(weights.gradient.numel())
        backend.export(folder / f"{case.name}-model")
        found[case.name] = parts
    if rank == 0:
        torch.save(found, folder / f"parts-{num_ranks}.pt")
    dist.barrier()
    ranks.leave()
