"""An optimiser's state for checkpoints that any layout reads.

megatron-core makes two optimisers where experts have other replicas than the rest of the model, else one. The state
on disk is the same for both: by weight, with one count of steps.
"""

from collections.abc import Iterator
from typing import Any

_SHARDING = "fully_reshardable"


def sharded_state(optimizer: Any, weights: dict[str, Any], *, is_loading: bool) -> dict[Any, Any]:
    """What this rank writes, or asks for.

    Args:
        optimizer: megatron-core's, of one or two.
        weights: The model's own state, described for distributed checkpoints.
        is_loading: Whether the state is about to be read.
    """
    metadata = {"distrib_optim_sharding_type": _SHARDING, "chained_optim_avoid_prefix": True}
    state: dict[Any, Any] = optimizer.sharded_state_dict(weights, is_loading=is_loading, metadata=metadata)
    return state


def load_state(optimizer: Any, state: dict[Any, Any]) -> None:
    """Restore what was asked for; learning rates and decay stay, since each step sets them.

    Args:
        optimizer: megatron-core's, after `sharded_state`.
        state: What reading gave: tensors as they were asked for, the rest as it was written.
    """
    step = next(group["step"] for group in _groups(state))
    own = optimizer.chained_optimizers
    parts = [state[i] for i in range(len(own))] if len(own) > 1 else [state]
    for one, part in zip(own, parts, strict=True):
        groups = [group | {"step": step} for group in one.state_dict()["optimizer"]["param_groups"]]
        one.load_state_dict(
            {
                "optimizer": {"param_groups": groups},
                "param_state": part["param_state"],
                "param_state_sharding_type": _SHARDING,
            }
        )


def _groups(state: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    """Of all optimisers of the layout that wrote the state."""
    for part in (state, *(part for key, part in state.items() if isinstance(key, int))):
        yield from part.get("optimizer", {}).get("param_groups", [])
