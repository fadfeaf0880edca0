"""A policy's state on disk in torch's distributed format: each rank writes what it holds, any layout reads it.

Of a policy with adapters it is theirs alone: the base comes from where the model comes from. The caller owns the
directory and makes it atomic.
"""

from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.models.gpt import GPTModel
from megatron.core.utils import make_sharded_tensor_for_checkpoint
from safetensors.torch import load_file, save_file

from seatrial_api.errors import CorruptionError
from seatrial_trainer.policy.megatron.adapters import Adapters
from seatrial_trainer.policy.megatron.optimizer import Optimizer
from seatrial_trainer.policy.megatron.optimizer_state import load_state, sharded_state


def save(directory: Path, model: Sequence[GPTModel], adapters: Adapters | None, optimizer: Optimizer) -> None:
    """Write this rank's part of the state; all ranks call it together."""
    shards = directory / "shards"
    shards.mkdir(parents=True, exist_ok=True)
    dist.barrier()  # ranks may share the folder or not; in both cases it is there before anyone looks
    _start_no_process()
    dist_checkpointing.save(_state(model, adapters, optimizer, is_loading=False), str(shards))
    save_file({"cpu": torch.get_rng_state(), **_cuda_state()}, _rng_file(directory))


def load(directory: Path, model: Sequence[GPTModel], adapters: Adapters | None, optimizer: Optimizer) -> None:
    """Restore what `save` wrote, in this layout or another.

    Raises:
        CorruptionError: a file is missing, damaged or of another model.
    """
    try:
        wanted = _state(model, adapters, optimizer, is_loading=True)
        state = dist_checkpointing.load(wanted, str(directory / "shards"))
    except (CheckpointingException, OSError, RuntimeError, KeyError, ValueError) as exc:
        msg = f"checkpoint {directory} cannot be restored: {type(exc).__name__}: {exc}"
        raise CorruptionError(msg) from exc
    if adapters is not None:
        adapters.restore(state["adapters"])
    for number, chunk in enumerate(model if adapters is None else ()):
        chunk.load_state_dict(state[f"model{number}"])
    load_state(optimizer.inner, state["optimizer"])
    if (file := _rng_file(directory)).exists():  # a layout of more ranks than wrote it has none for the new ones
        random = load_file(file)
        torch.set_rng_state(random["cpu"])
        if "cuda" in random and torch.cuda.is_available():
            torch.cuda.set_rng_state(random["cuda"])


def _state(
    model: Sequence[GPTModel], adapters: Adapters | None, optimizer: Optimizer, *, is_loading: bool
) -> dict[str, Any]:
    if adapters is None:
        weights = {f"model{number}": chunk.sharded_state_dict() for number, chunk in enumerate(model)}
    else:
        named = adapters.named_parameters()
        weights = {"adapters": {name: make_sharded_tensor_for_checkpoint(one, name) for name, one in named}}
    return {**weights, "optimizer": sharded_state(optimizer.inner, weights, is_loading=is_loading)}


def _start_no_process() -> None:
    """Write in this process: megatron-core's own queue of what was written is a process that takes seconds to start."""
    if filesystem_async._results_queue is None:  # noqa: SLF001  no public place
        filesystem_async._results_queue = SimpleQueue()  # noqa: SLF001  no public place


def _cuda_state() -> dict[str, torch.Tensor]:
    return {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}


def _rng_file(directory: Path) -> Path:
    return directory / f"rng-{dist.get_rank()}.safetensors"
