"""A rank's part of a large model, built by megatron-core where tensors have shapes and no memory."""

import multiprocessing
from dataclasses import dataclass
from typing import Any

from seatrial_api.spec.backend import TrainerSpec

_SECONDS = 240.0


@dataclass(frozen=True)
class Built:
    """What a rank would hold."""

    dense: int
    """Weights outside of the experts."""
    experts: int
    gradients: int
    """Of the buffers that they are added up in, padding included."""
    optimizer: int
    """Of the rank's own part of those, whose masters and moments it keeps."""


@dataclass(frozen=True)
class Place:
    """A rank of a layout of a model."""

    config: dict[str, Any]
    """A Hugging Face config."""
    trainer: TrainerSpec
    rank: int


def build_all(places: list[Place]) -> list[Built]:
    """What each rank would hold, found in a process of its own, for what stands in for a GPU stays."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_build_all, args=(places, sender))
    process.start()
    try:
        sender.close()
        if not receiver.poll(_SECONDS):
            msg = f"not built within {_SECONDS} s"
            raise TimeoutError(msg)
        found: list[Built] = receiver.recv()
        return found
    finally:
        process.kill()
        process.join()


def _build_all(places: list[Place], sender: Any) -> None:
    import torch  # noqa: PLC0415  only this process needs it

    from seatrial_trainer.policy.megatron import on_cpu  # noqa: PLC0415

    torch.set_num_threads(1)
    on_cpu.install()
    torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment, return-value]
    sender.send([_build(place) for place in places])


def _build(place: Place) -> Built:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from megatron.core import parallel_state  # noqa: PLC0415
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415
    from transformers import AutoConfig  # noqa: PLC0415

    from seatrial_trainer.policy.megatron import model  # noqa: PLC0415
    from seatrial_trainer.policy.megatron.mesh import Mesh  # noqa: PLC0415

    dist.init_process_group("fake", store=FakeStore(), rank=place.rank, world_size=place.trainer.ranks)
    try:
        fields = dict(place.config)
        hf_config = AutoConfig.for_model(fields.pop("model_type"), **fields)
        config = model.transformer_config(hf_config, place.trainer, torch.bfloat16)
        mesh = Mesh.form(place.trainer.parallelism, seed=0)
        with torch.device("meta"):
            chunks = model.build(config, hf_config, mesh)
            distributed = [model.distribute(chunk, config) for chunk in chunks]
        sizes = [(name, parameter.numel()) for chunk in chunks for name, parameter in chunk.named_parameters()]
        experts = sum(size for name, size in sizes if ".experts." in name)
        buffers = [buffer for ddp in distributed for buffer in (*ddp.buffers, *ddp.expert_parallel_buffers)]
        return Built(
            dense=sum(size for _, size in sizes) - experts,
            experts=experts,
            gradients=sum(buffer.grad_data.numel() for buffer in buffers),
            optimizer=sum(buffer.grad_data.numel() // buffer.data_parallel_group.size() for buffer in buffers),
        )
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
