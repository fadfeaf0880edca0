"""What a policy backend is built from."""

from dataclasses import dataclass
from typing import Self

from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.algorithm import OptimizerSpec
from seatrial_api.spec.backend import TrainerSpec
from seatrial_api.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class PolicySetup:
    """The parts of a run that decide a policy backend."""

    model: ModelSpec
    trainer: TrainerSpec
    optimizer: OptimizerSpec
    seed: int = 0

    @classmethod
    def from_run(cls, spec: RLRunSpec) -> Self:
        """The setup of a run."""
        return cls(spec.model, spec.trainer, spec.algorithm.optimizer, spec.algorithm.seed)
