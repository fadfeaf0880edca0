"""A policy's state on disk: weights, optimiser and random numbers, restored bitwise.

Ranks that hold the same write it once, as `policy.safetensors`; ranks that each hold a part write `shards/`, torch's
distributed format. Any number of ranks reads either. `rng-<rank>.safetensors` holds each rank's random state. The
caller owns the directory and makes it atomic.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader

from seatrial_api.errors import CorruptionError
from seatrial_trainer.policy.ranks import Ranks
from seatrial_trainer.policy.weights import TrainedWeights

STATE_FILE = "policy.safetensors"
SHARDS_FOLDER = "shards"


@dataclass(frozen=True)
class HeldState:
    """A copy of this rank's part of the state in host memory, which can be written while training goes on."""

    state: dict[str, Tensor]
    """Empty on the later ones of ranks that hold the same."""
    is_cut: bool
    random: dict[str, Tensor]
    ranks: Ranks

    @classmethod
    def of(cls, weights: TrainedWeights, ranks: Ranks) -> Self:
        """The state as it is now."""
        random = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            random["cuda"] = torch.cuda.get_rng_state()
        state = weights.state() if weights.is_cut or ranks.rank == 0 else {}
        copied = {name: tensor.to("cpu", copy=True) for name, tensor in state.items()}
        return cls(copied, weights.is_cut, random, ranks)

    def write(self, directory: Path) -> None:
        """Write it; all ranks call it together, in whatever thread."""
        directory.mkdir(parents=True, exist_ok=True)
        if self.is_cut:
            state_dict_saver.save(self.state, checkpoint_id=directory / SHARDS_FOLDER, process_group=self.ranks.beside)
        elif self.state:
            save_file({name: tensor.contiguous() for name, tensor in self.state.items()}, directory / STATE_FILE)
        save_file(self.random, _rng_file(directory, self.ranks.rank))


def load(directory: Path, weights: TrainedWeights, ranks: Ranks) -> None:
    """Restore what was written, on as many ranks or on others; all ranks call it together.

    Raises:
        CorruptionError: a file is missing, damaged or of another model.
    """
    try:
        if (directory / SHARDS_FOLDER).exists():
            _load_shards(directory / SHARDS_FOLDER, weights, ranks)
        else:
            with safe_open(directory / STATE_FILE, framework="pt") as file:
                weights.restore(set(file.keys()), file.get_tensor)
        random = _load_random(directory, ranks)
    except (OSError, SafetensorError, KeyError, RuntimeError, ValueError, CheckpointException) as exc:
        msg = f"checkpoint {directory} cannot be restored: {type(exc).__name__}: {exc}"
        raise CorruptionError(msg) from exc
    if "cpu" in random:
        torch.set_rng_state(random["cpu"])
    if "cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])


def _load_shards(folder: Path, weights: TrainedWeights, ranks: Ranks) -> None:
    names = FileSystemReader(folder).read_metadata().state_dict_metadata.keys()
    state = weights.state_like(names)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)  # one rank
        state_dict_loader.load(state, checkpoint_id=folder, no_dist=ranks.count == 1)
    weights.restore(names, state.__getitem__)


def _load_random(directory: Path, ranks: Ranks) -> dict[str, Tensor]:
    """This rank's random state; of more ranks than wrote a checkpoint the later ones have none."""
    file = _rng_file(directory, ranks.rank)
    return load_file(file) if ranks.rank == 0 or file.exists() else {}


def _rng_file(directory: Path, rank: int) -> Path:
    return directory / f"rng-{rank}.safetensors"
