"""Trained weights: 32-bit masters, 32-bit gradients in one buffer, AdamW."""

from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from seatrial_api.spec.algorithm import OptimizerSpec
from seatrial_trainer.policy.ranks import Ranks
from seatrial_trainer.policy.sharding import joined, own_part, part_like

_OPTIMIZER_STATE = ("step", "exp_avg", "exp_avg_sq")


class TrainedWeights:
    """Parameters with all that an optimiser step needs.

    A parameter in a shorter format has a 32-bit master, which starts at the value that the engines serve and takes the
    updates; the parameter is its rounding. Gradients of all micro-batches add up in 32 bits in one buffer, so a norm
    or a reduction over ranks is one operation.

    Of parameters that are cut over ranks all of this is a rank's own part, whose gradient arrives added up.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], spec: OptimizerSpec, ranks: Ranks, *, offload: bool
    ) -> None:
        self._ranks = ranks
        self._parameters = {name: p for name, p in parameters.items() if p.requires_grad}
        self.is_cut = any(isinstance(p, DTensor) for p in self._parameters.values())
        """Whether each rank holds a part, or all hold the same."""
        named = [(name, own_part(p.detach())) for name, p in self._parameters.items()]
        device = named[0][1].device
        self.gradient = torch.zeros(sum(p.numel() for _, p in named), device=device)
        host = torch.device("cpu") if offload else device
        self._step_gradient = self.gradient if host == device else torch.zeros_like(self.gradient, device=host)
        self.masters: dict[str, Tensor] = {}
        offset = 0
        for name, p in named:
            part = slice(offset, offset + p.numel())
            offset += p.numel()
            self._accumulate_into(self._parameters[name], self.gradient[part].view_as(p))
            is_own_master = p.dtype == torch.float32 and host == device
            master = nn.Parameter(p if is_own_master else p.to(host, torch.float32, copy=True))
            master.grad = self._step_gradient[part].view_as(p)
            self.masters[name] = master
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [m for m in self.masters.values() if m.dim() > 1], "weight_decay": spec.weight_decay},
                {"params": [m for m in self.masters.values() if m.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=spec.learning_rate,
            betas=spec.betas,
            eps=spec.epsilon,
            fused=True,
        )

    def clip(self, max_norm: float) -> float:
        """Add the gradient up over ranks and scale it down to `max_norm` if it is longer; returns its norm before."""
        if not self.is_cut:
            self._ranks.sum_(self.gradient)
        square = torch.linalg.vector_norm(self.gradient).square()
        if self.is_cut:
            self._ranks.sum_(square)
        norm = float(square.sqrt())
        if norm > max_norm:
            self.gradient.mul_(max_norm / norm)
        return norm

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update masters and parameters by the gradient."""
        if self._step_gradient is not self.gradient:
            self._step_gradient.copy_(self.gradient)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self._round_masters()

    def zero_gradient(self) -> None:
        """Forget the gradient."""
        self.gradient.zero_()

    def state(self) -> dict[str, Tensor]:
        """Masters and optimiser state by name; of what is cut over ranks, this rank's part of it."""
        return dict(self._state())

    def state_like(self, names: Collection[str]) -> dict[str, Tensor]:
        """Room for the parts of a state that go by these names, to be filled from a file."""
        return {
            f"{kind}/{name}": joined(torch.empty_like(master), self._parameters[name])
            if kind != "step"
            else torch.zeros(())
            for name, master in self.masters.items()
            for kind in ("weights", *_OPTIMIZER_STATE)
            if f"{kind}/{name}" in names
        }

    @torch.no_grad()
    def restore(self, names: Collection[str], read: Callable[[str], Tensor]) -> None:
        """Set what `state` gave, bitwise.

        Args:
            names: What there is.
            read: One of them, whole or this rank's part.

        Raises:
            KeyError: a tensor is missing.
            RuntimeError: a tensor has another shape.
        """
        for name, master in self.masters.items():
            like = self._parameters[name]
            master.copy_(_part(read(f"weights/{name}"), like))
            self.optimizer.state[master] = {
                key: _part(read(f"{key}/{name}"), like).to(master.device, copy=True)
                for key in _OPTIMIZER_STATE
                if f"{key}/{name}" in names
            }
        self._round_masters()

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        for name, master in self.masters.items():
            like = self._parameters[name]
            yield f"weights/{name}", joined(master.detach(), like)
            for key, value in self.optimizer.state.get(master, {}).items():
                yield f"{key}/{name}", joined(value, like) if value.dim() else value

    def _round_masters(self) -> None:
        for name, p in self._parameters.items():
            if (own := own_part(p.detach())).data_ptr() != self.masters[name].data_ptr():
                own.copy_(self.masters[name])

    def _accumulate_into(self, p: nn.Parameter, gradient: Tensor) -> None:
        if p.dtype == torch.float32:
            p.grad = joined(gradient, p)  # autograd and FSDP add in place
            return

        def add(parameter: Tensor) -> None:
            if parameter.grad is not None:
                gradient.add_(parameter.grad)
                parameter.grad = None

        p.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _part(value: Tensor, like: Tensor) -> Tensor:
    """What this rank keeps of a value that was read, whole or cut already."""
    return own_part(value) if isinstance(value, DTensor) or value.dim() == 0 else part_like(value, like)
