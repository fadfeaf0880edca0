"""What megatron-core takes for granted of a GPU, for machines without one.

megatron-core calls `torch.cuda` unconditionally and names the device "cuda" in literals. Here the former answer for the
CPU and the latter mean it; nothing else in the backend knows on what it runs. On a GPU this module is not loaded.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, override

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


class _Stream:
    """Work is done in order, so that there is nothing to wait for."""

    device = _CPU

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def wait_stream(self, *_args: Any) -> None: ...

    def wait_event(self, *_args: Any) -> None: ...

    def record_event(self, *_args: Any) -> "_Stream":
        return self

    def record(self, *_args: Any) -> None: ...

    def wait(self, *_args: Any) -> None: ...

    def synchronize(self) -> None: ...


class _Generators(tuple[torch.Generator, ...]):
    """megatron-core looks up its device's generator by what `current_device` answers."""

    __slots__ = ()

    @override
    def __getitem__(self, _device: Any) -> Any:
        return torch.default_generator


_ANSWERS: dict[str, Callable[..., Any]] = {
    "current_device": lambda: _CPU,
    "set_device": lambda _device=None: None,
    "synchronize": lambda _device=None: None,
    "current_stream": lambda _device=None: _Stream(),
    "default_stream": lambda _device=None: _Stream(),
    "stream": lambda _stream=None: nullcontext(),
    "get_rng_state": lambda device=None: torch.get_rng_state(),  # noqa: ARG005
    "set_rng_state": lambda state, device=None: torch.set_rng_state(state),  # noqa: ARG005
    "manual_seed": torch.manual_seed,
    "empty_cache": lambda: None,
    "is_current_stream_capturing": lambda: False,
    "get_device_capability": lambda _device=None: (8, 0),
    "_lazy_call": lambda call, **_kwargs: call(),
}


class _CudaMeansCpu(TorchFunctionMode):
    """Calls that name a GPU are made for the CPU."""

    @override
    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _STAYS:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            return func(*args, **kwargs).replace("torch.", "torch.cuda.", 1)  # compared with names of cuda's types
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], _CPU, *args[2:])
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        return func(*args, **kwargs)


_STAYS = {torch.Tensor.cuda, torch.Tensor.pin_memory, torch.Tensor.record_stream}


def _is_cuda(device: Any) -> bool:
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, torch.device) and device.type == "cuda"


@cache
def install() -> None:
    """Answer for the CPU from now on, in this process, which holds a policy rank and nothing else."""
    for name, answer in _ANSWERS.items():
        setattr(torch.cuda, name, answer)
    torch.cuda.random.get_rng_state = _ANSWERS["get_rng_state"]
    torch.cuda.Stream = _Stream  # type: ignore[assignment, misc]
    torch.cuda.Event = _Stream  # type: ignore[assignment, misc]
    torch.cuda.default_generators = _Generators()  # type: ignore[assignment]  # looked up, never iterated
    _leave_functions_uncompiled()
    _repair_token_dispatcher()
    _repair_shared_optimizer()
    _provide_gated_delta_kernels()
    _CudaMeansCpu().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _leave_functions_uncompiled() -> None:
    """Fusing pays on a GPU; on a CPU a compiler would run for minutes, if there is one."""
    from megatron.core.jit import disable_jit_fuser  # noqa: PLC0415  after the answers above

    disable_jit_fuser()


def _provide_gated_delta_kernels() -> None:
    """megatron-core has Gated DeltaNet's kernels from flash-linear-attention, which needs Triton."""
    from megatron.core.ssm.gated_delta_net import common, gdn  # noqa: PLC0415  after the answers above

    from seatrial_trainer.policy import gated_delta  # noqa: PLC0415  only where a model may need it

    common.HAVE_FLA = True
    common.l2norm = gated_delta.l2norm
    gdn.causal_conv1d = gated_delta.causal_conv1d
    gdn.chunk_gated_delta_rule = gated_delta.chunk_gated_delta_rule


def _repair_token_dispatcher() -> None:
    """Splits of an all-to-all stay tensors on a CPU, and the exchange wants plain numbers."""
    from megatron.core.transformer.moe import moe_utils, token_dispatcher  # noqa: PLC0415  after the answers above

    def to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:  # noqa: ARG001
        return tensor.numpy() if torch.is_tensor(tensor) and as_numpy else tensor

    moe_utils.maybe_move_tensor_to_cpu = to_cpu
    token_dispatcher.maybe_move_tensor_to_cpu = to_cpu


def _repair_shared_optimizer() -> None:
    """Torch's Adam counts steps in a tensor of each weight, which a shared optimiser's checkpoint does not expect."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: PLC0415  after the answers above

    set_state = DistributedOptimizer._set_main_param_and_optimizer_states  # noqa: SLF001  no public place
    load, describe = DistributedOptimizer.load_state_dict, DistributedOptimizer.sharded_state_dict

    def set_state_with_step(self: Any, model_param: Any, tensors: dict[str, Any]) -> Any:
        group, index = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][index]]
        return set_state(self, model_param, {**({"step": state["step"]} if "step" in state else {}), **tensors})

    def load_with_own_steps(self: Any, state_dict: Any) -> Any:
        result = load(self, state_dict)
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()  # one tensor for all would count each weight's step
        return result

    def describe_before_a_step(self: Any, weights: Any, is_loading: bool = False, *args: Any, **kwargs: Any) -> Any:
        if is_loading and not self.optimizer.state:
            self.init_state_fn(self.optimizer, self.config)
            for state in self.optimizer.state.values():
                state.setdefault("step", torch.tensor(0.0))
        return describe(self, weights, is_loading, *args, **kwargs)

    DistributedOptimizer._set_main_param_and_optimizer_states = set_state_with_step  # noqa: SLF001
    DistributedOptimizer.load_state_dict = load_with_own_steps
    DistributedOptimizer.sharded_state_dict = describe_before_a_step
