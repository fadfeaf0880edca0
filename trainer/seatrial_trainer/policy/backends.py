"""Which backend a rank runs."""

from importlib.util import find_spec
from pathlib import Path

import torch

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy.protocol import PolicyBackend
from seatrial_trainer.policy.ranks import Ranks
from seatrial_trainer.policy.setup import PolicySetup


def start_backend(setup: PolicySetup, model_path: Path, ranks: Ranks) -> PolicyBackend:
    """Load the model in the backend that the run names; each is imported only where it is used.

    Raises:
        InvalidInputError: the backend is not there, or cannot train this model in this layout.
    """
    match setup.trainer.backend:
        case "torch":
            from seatrial_trainer.policy.torch_backend import TorchBackend  # noqa: PLC0415

            return TorchBackend(setup, model_path, ranks)
        case "megatron":
            if not torch.cuda.is_available():
                from seatrial_trainer.policy.megatron import on_cpu  # noqa: PLC0415  before megatron-core is imported

                on_cpu.install()
            from seatrial_trainer.policy.megatron.backend import MegatronBackend  # noqa: PLC0415

            return MegatronBackend(setup, model_path)
        case "tinker":
            if find_spec("tinker") is None:
                msg = "trainer.backend: tinker needs its SDK; install seatrial-trainer[tinker], or choose torch"
                raise InvalidInputError(msg)
            from seatrial_trainer.policy.tinker.backend import TinkerBackend  # noqa: PLC0415  an optional dependency

            return TinkerBackend(setup, model_path)
