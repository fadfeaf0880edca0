"""A Hugging Face causal language model, cut into the two parts that training needs: hidden states and logits."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import structlog
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy import attention
from seatrial_trainer.policy.layout import AttentionPlan, Layout, padded_layout, shared_layout
from seatrial_trainer.policy.packing import Pack, plan_padded, plan_shared
from seatrial_trainer.policy.ranks import Ranks
from seatrial_trainer.policy.sharding import shard

COMFORTABLE_ON_CPU = 1024
"""Packs larger than this fall out of a CPU's caches and are slower by a fifth."""

log = structlog.get_logger(__name__)

_RUN = "seatrial_run"
"""Name of the module's method that computes a pack; FSDP knows methods of modules alone."""

_PACKABLE_LAYERS = {"full_attention", "sliding_attention"}
_PROBE = ([1, 2, 3, 4, 5], [1, 2, 3, 6], [2, 1, 7])


class CausalLM:
    """Hidden states of packs, and logits of chosen hidden states.

    Packs share prefixes where every layer that mixes tokens is attention that transformers lets us provide, and where
    a probe shows that packed sequences give the logits that they give alone; otherwise sequences are padded.
    """

    def __init__(self, model_path: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.module = load_module(model_path, dtype).to(device)
        setattr(self.module, _RUN, lambda layout, use: use(self.hidden(layout)))
        self.device = device
        self._name = type(self.module).__name__
        self._decoder = self.module.get_decoder()
        self.vocab_size: int = self.module.get_output_embeddings().weight.shape[0]
        self._adjust_logits = _logit_adjustment(self.module.config)
        with torch.no_grad():
            expected = self._logits_of_probe_alone()
            self._check_head(expected, model_path)
            self.shares_prefixes = self._try_packing(expected)

    def plan(self, sequences: Sequence[list[int]], budget: int) -> list[Pack]:
        """Cut sequences into packs of at most `budget` positions, smaller ones on a CPU where that is faster."""
        comfortable = min(budget, COMFORTABLE_ON_CPU) if self.device.type == "cpu" else budget
        if self.shares_prefixes:
            return plan_shared(sequences, budget, comfortable=comfortable)
        return plan_padded(sequences, comfortable)

    def layout(self, pack: Pack, sequences: Sequence[list[int]], predicted: Sequence[np.ndarray]) -> Layout:
        """The tensors of one pack."""
        build = shared_layout if self.shares_prefixes else padded_layout
        return build(pack, sequences, predicted, self.device)

    def shard(self, ranks: Ranks, dtype: torch.dtype, device: torch.device) -> None:
        """Cut the weights over ranks, on a device; from now on all ranks compute as many packs as each other."""
        shard(self.module, ranks, dtype, device)
        self.device = device
        register_fsdp_forward_method(self.module, _RUN)

    def run[T](self, layout: Layout, use: Callable[[Tensor], T]) -> T:
        """What `use` makes of the hidden states of a pack, while the head's weights are whole."""
        result: T = getattr(self.module, _RUN)(layout, use)
        return result

    def idle_layout(self) -> Layout:
        """A pack that predicts nothing, for a rank that only keeps step with others."""
        token, none = torch.zeros((1, 1), dtype=torch.int64, device=self.device), torch.zeros(0, dtype=torch.int64)
        attention_plan = AttentionPlan([1], [1], None) if self.shares_prefixes else None
        return Layout(token, token, attention_plan, none.to(self.device), none.to(self.device))

    @property
    def head_parameters(self) -> list[nn.Parameter]:
        """The weights that make logits of hidden states."""
        return list(self.module.get_output_embeddings().parameters())

    def rest(self) -> None:
        """Forget what was put together for a forward pass that had no backward pass."""
        if isinstance(self.module, FSDPModule):
            self.module.reshard()

    def hidden(self, layout: Layout) -> Tensor:
        """Hidden states before the head at the positions that predict targets."""
        packing = {} if layout.attention is None else {"attention_plan": layout.attention}
        output = self._decoder(input_ids=layout.input_ids, position_ids=layout.position_ids, use_cache=False, **packing)
        return cast("Tensor", output.last_hidden_state.flatten(0, 1).index_select(0, layout.predictor))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in float32 for each hidden state."""
        return self._adjust_logits(self.module.get_output_embeddings()(hidden)).float()

    def recompute_activations(self, context_fn: Callable[[], Any] | None) -> None:
        """Keep only layer inputs, or what `context_fn` chooses, and recompute the rest in the backward pass."""
        options: dict[str, Any] = {"use_reentrant": False}
        if context_fn is not None:
            options["context_fn"] = context_fn
        self.module.gradient_checkpointing_enable(options)

    def _logits_of_probe_alone(self) -> list[Tensor]:
        ids = [torch.tensor([sequence], device=self.device) for sequence in _PROBE]
        return [self.module(input_ids=row, use_cache=False).logits[0].float() for row in ids]

    def _check_head(self, expected: list[Tensor], model_path: Path) -> None:
        output = self._decoder(input_ids=torch.tensor([_PROBE[0]], device=self.device), use_cache=False)
        if not _agree(self.logits(output.last_hidden_state[0]), expected[0]):
            msg = (
                f"model {model_path}: its logits are not its output embedding of the last hidden state, so losses "
                f"can't be computed in chunks; architecture {self._name} is not supported"
            )
            raise InvalidInputError(msg)

    def _try_packing(self, expected: list[Tensor]) -> bool:
        layer_types = set(getattr(self.module.config, "layer_types", None) or ["full_attention"])
        if not self.module._supports_attention_backend or not layer_types <= _PACKABLE_LAYERS:  # noqa: SLF001  no public flag
            return False
        attention.register()
        own_attention = self.module.config._attn_implementation  # noqa: SLF001  its only name
        self.module.set_attn_implementation(attention.PACKED_ATTENTION)
        if self._packed_probe_agrees(expected):
            return True
        self.module.set_attn_implementation(own_attention)
        log.warning("sequences are padded, not packed: the model's attention is of another kind", model=self._name)
        return False

    def _packed_probe_agrees(self, expected: list[Tensor]) -> bool:
        sequences = [[*sequence, 0] for sequence in _PROBE]  # the last token is only predicted
        predicted = [np.arange(1, len(sequence)) for sequence in sequences]
        (pack,) = plan_shared(_PROBE, budget=sum(map(len, _PROBE)))
        try:
            logits = self.logits(self.hidden(shared_layout(pack, sequences, predicted, self.device)))
        except TypeError:  # the attention refuses an option of the model
            return False
        return _agree(logits, torch.cat([expected[member.sequence] for member in pack.members]))


def load_module(model_path: Path, dtype: torch.dtype) -> Any:
    """The model in training mode without dropout: the trainer has to agree with the engine that sampled.

    Raises:
        InvalidInputError: there is no causal language model at the path.
    """
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  heavy, and only a policy rank needs it

    try:
        config = AutoConfig.from_pretrained(model_path)
        for name in vars(config):
            if name.endswith(("dropout", "_pdrop")) and isinstance(getattr(config, name), float):
                setattr(config, name, 0.0)
        module = AutoModelForCausalLM.from_pretrained(model_path, config=config, dtype=dtype)
    except (OSError, ValueError) as exc:
        msg = f"model {model_path}: {exc}"
        raise InvalidInputError(msg) from exc
    return module.train()


def _logit_adjustment(config: Any) -> Callable[[Tensor], Tensor]:
    """What an architecture does to its logits after the output embedding."""
    if cap := getattr(config, "final_logit_softcapping", None):  # Gemma
        return lambda logits: torch.tanh(logits / cap) * cap
    if scale := getattr(config, "logit_scale", None):  # Cohere
        return partial(torch.mul, other=scale)
    if scaling := getattr(config, "logits_scaling", None):  # Granite
        return lambda logits: logits / scaling
    return lambda logits: logits


def _agree(a: Tensor, b: Tensor) -> bool:
    """Whether two ways to the same logits agree up to rounding; a wrong one is off by the logits' own size."""
    return bool((a - b).abs().max() <= 0.05 * b.std() + 1e-5)
