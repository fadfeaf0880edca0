"""A model whose weights are cut over ranks by torch's FSDP2 and put together layer by layer while they are used."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy.ranks import Ranks


def shard(module: Any, ranks: Ranks, dtype: torch.dtype, device: torch.device) -> None:
    """Cut every weight over the ranks by its first dimension; all ranks call it together, with the same weights.

    What is trained is kept in 32 bits and computed with in `dtype`, as rounding masters would; gradients are added up
    over the ranks in 32 bits. The layers go to the device one at a time.

    Raises:
        InvalidInputError: the model has no list of layers.
    """
    decoder = module.get_decoder()
    layers = next((child for child in decoder.children() if isinstance(child, nn.ModuleList)), None)
    if layers is None:
        msg = f"trainer.ranks: {type(module).__name__} has no list of layers to cut over {ranks.count} ranks; use one"
        raise InvalidInputError(msg)
    mesh = init_device_mesh(device.type, (ranks.count,))
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for part in (*layers, module):
        for parameter in part.parameters():
            if parameter.requires_grad and not isinstance(parameter, DTensor):
                parameter.data = parameter.data.float()
        fully_shard(part, mesh=mesh, mp_policy=precision)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_force_sum_reduction_for_comms(enable=True)  # gloo has no other
            part.set_gradient_divide_factor(1.0)  # the loss is a sum over tokens
    module.set_reduce_scatter_unused_params(reduce_scatter_unused_params=True)  # a rank may have no token for the head


def own_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: all of one that is not cut."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight put together, in the format that it is computed with; a collective if it is cut."""
    if not isinstance(tensor, DTensor):
        return tensor
    rounded = tensor.detach().to(dtype)
    return rounded.full_tensor() if isinstance(rounded, DTensor) else rounded


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor what this rank holds of one like it."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None).to_local()


def joined(part: Tensor, like: Tensor) -> Tensor:
    """The tensor that this rank holds `part` of, cut as `like` is."""
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@contextmanager
def adding_up(parameters: Sequence[nn.Parameter], *, is_needed: bool) -> Iterator[Callable[[], None]]:
    """Within a block, add several gradients of weights that are whole just then up in 32 bits.

    Args:
        parameters: The weights, which have no gradient yet.
        is_needed: False where gradients add up in 32 bits anyway.

    Yields:
        What sets the gradients that have come since aside.
    """
    sums: dict[nn.Parameter, Tensor] = {}

    def set_aside() -> None:
        for parameter in parameters if is_needed else ():
            if parameter.grad is not None:
                found = parameter.grad.float()
                sums[parameter] = sums[parameter].add_(found) if parameter in sums else found
                parameter.grad = None

    yield set_aside
    for parameter, total in sums.items():
        parameter.grad = total.to(parameter.dtype)
