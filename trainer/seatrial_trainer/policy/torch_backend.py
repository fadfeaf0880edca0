"""The policy backend in plain torch: a Hugging Face model, packed micro-batches, AdamW, data-parallel ranks."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import override

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from seatrial_trainer.policy import checkpoint, hugging_face
from seatrial_trainer.policy.adapters import Adapters
from seatrial_trainer.policy.batch import Minibatch, OptimStats, StepStats
from seatrial_trainer.policy.causal_lm import CausalLM, load_module
from seatrial_trainer.policy.model_files import weights_like
from seatrial_trainer.policy.packing import Pack, share_of_rank
from seatrial_trainer.policy.ranks import Ranks
from seatrial_trainer.policy.recompute import apply_recompute
from seatrial_trainer.policy.scoring import ScoringBackend
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.sharding import adding_up, own_part, part_like, whole
from seatrial_trainer.policy.step_totals import StepTotals
from seatrial_trainer.policy.token_loss import weighted_loss
from seatrial_trainer.policy.token_tensors import TokenTensors, predicted_tokens
from seatrial_trainer.policy.weights import TrainedWeights

LOGITS_BYTES = {"cpu": 16 << 20, "cuda": 512 << 20}
"""Logits of so many bytes at most exist at once."""


class TorchBackend(ScoringBackend):
    """One data-parallel rank, which holds all weights or, beside others, its part of each.

    The loss is a sum over tokens, so the gradient of the output head is taken chunk by chunk as soon as its logits
    are there, and that of the layers pack by pack; neither changes the sum. Across ranks gradients are added. Ranks
    put layers together for each other, so that all compute as many packs: some compute idle ones.
    """

    def __init__(self, setup: PolicySetup, model_path: Path, ranks: Ranks | None = None) -> None:
        torch.manual_seed(setup.seed)
        self._ranks = ranks or Ranks()
        self._max_grad_norm = setup.optimizer.max_grad_norm
        self._model_path = model_path
        self._dtype = getattr(torch, setup.model.dtype)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        is_cut = self._ranks.count > 1
        self._model = CausalLM(model_path, self._dtype, torch.device("cpu") if is_cut else self._device)
        self._budget = setup.trainer.max_tokens_per_microbatch
        self._logit_rows = max(1, LOGITS_BYTES[self._device.type] // (4 * self._model.vocab_size))
        apply_recompute(self._model, setup.trainer.recompute)
        self._adapters = self._make_adapters(setup)
        if is_cut:
            self._model.shard(self._ranks, self._dtype, self._device)
        self._weights = TrainedWeights(
            self._adapters.parameters if self._adapters else dict(self._model.module.named_parameters()),
            setup.optimizer,
            self._ranks,
            offload=setup.trainer.offload_optimizer,
        )
        self._reference: list[Tensor] | None = None

    @override
    def forward_backward(self, minibatch: Minibatch) -> StepStats:
        started = time.monotonic()
        sequences = self.with_reference(minibatch.sequences)
        token_ids = [sequence.token_ids for sequence in sequences]
        predicted = [predicted_tokens(sequence) for sequence in sequences]
        totals = StepTotals(self._device)
        own, num_idle = self._own_packs(token_ids, predicted)
        for pack in own:
            layout = self._model.layout(pack, token_ids, predicted)
            tokens = TokenTensors.of_pack(pack, sequences, predicted, layout.targets, minibatch.fresh_version)
            totals.add_pack(
                num_positions=pack.num_positions,
                num_padding=pack.num_padding,
                num_read=sum(int(predicted[member.sequence][-1]) for member in pack.members),
            )
            torch.autograd.backward(
                *self._model.run(layout, partial(self._gradient, tokens=tokens, minibatch=minibatch, totals=totals))
            )
        for _ in range(num_idle):
            torch.autograd.backward(*self._model.run(self._model.idle_layout(), lambda hidden: (hidden, hidden)))
        return totals.stats(self._ranks, seconds=time.monotonic() - started)

    @override
    def optim_step(self, learning_rate: float) -> OptimStats:
        norm = self._weights.clip(self._max_grad_norm)
        is_finite = bool(np.isfinite(norm))
        if is_finite:
            self._weights.step(learning_rate)
        self._weights.zero_gradient()
        return OptimStats(grad_norm=norm, learning_rate=learning_rate, skipped=not is_finite)

    @override
    def save(self, directory: Path) -> None:
        checkpoint.HeldState.of(self._weights, self._ranks).write(directory)

    @override
    def hold(self, state: Path, model: Path) -> Callable[[], None]:
        held = checkpoint.HeldState.of(self._weights, self._ranks)
        weights = [(name, tensor.to("cpu", copy=True)) for name, tensor in self._weights_to_write()]

        def write() -> None:
            try:
                held.write(state)
                self._write_model(weights, model)
            except (SafetensorError, CheckpointException) as exc:  # neither says where
                raise OSError(f"the checkpoint {state.parent} cannot be written: {exc}") from exc

        return write

    @override
    def load(self, directory: Path) -> None:
        checkpoint.load(directory, self._weights, self._ranks)

    @override
    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        def put_together(name: str, weight: Tensor) -> Tensor:
            together = whole(weight, self._dtype)
            return self._adapters.merged(name, together) if self._adapters else together

        return hugging_face.named_weights(self._model.module, put_together)

    @override
    def export(self, directory: Path) -> int:
        return self._write_model(self._weights_to_write(), directory)

    def _weights_to_write(self) -> Iterator[tuple[str, Tensor]]:
        """What the first rank writes of the trained weights; those that are cut are put together by all."""
        for name, tensor in self.export_weights():
            if self._ranks.rank == 0:
                yield name, tensor

    def _write_model(self, trained: Iterable[tuple[str, Tensor]], directory: Path) -> int:
        if self._ranks.rank != 0:
            return sum(tensor.nbytes for _, tensor in trained)
        weights = chain(trained, self._untrained_weights())
        return hugging_face.export(weights, self._model_path, directory, str(self._dtype).removeprefix("torch."))

    def _untrained_weights(self) -> Iterator[tuple[str, Tensor]]:
        """What the model directory holds beside the language model, such as a vision tower, as it is there."""
        ignored = getattr(self._model.module, "_keys_to_ignore_on_load_unexpected", None) or ()
        return weights_like(ignored, self._model_path)

    def _make_adapters(self, setup: PolicySetup) -> Adapters | None:
        if setup.model.lora is None:
            return None
        module = self._model.module
        return Adapters(module, setup.model.lora, head=module.get_output_embeddings(), seed=setup.seed)

    def _gradient(
        self, hidden: Tensor, tokens: TokenTensors, minibatch: Minibatch, totals: StepTotals
    ) -> tuple[Tensor, Tensor]:
        """Add the head's gradient for a pack; returns its hidden states and their gradient."""
        with adding_up(self._model.head_parameters, is_needed=self._weights.is_cut) as set_aside:
            gradients = []
            for chunk, chunk_tokens in self._chunks(hidden, tokens):
                gradients.append(self._chunk_gradient(chunk, chunk_tokens, minibatch, totals))
                set_aside()
        return hidden, torch.cat(gradients)

    def _chunk_gradient(self, hidden: Tensor, tokens: TokenTensors, minibatch: Minibatch, totals: StepTotals) -> Tensor:
        """Add the head's gradient for some tokens; returns that of their hidden states."""
        leaf = hidden.detach().requires_grad_()
        distribution = self._model.logits(leaf).log_softmax(-1)
        logprobs = distribution.gather(1, tokens.targets[:, None])[:, 0]
        with torch.no_grad():
            entropy = -(distribution.exp() * distribution).sum(-1)
        torch.autograd.backward(weighted_loss(tokens, logprobs, entropy, minibatch, totals))
        if leaf.grad is None:
            return torch.zeros_like(leaf)
        return leaf.grad

    def _chunks(self, hidden: Tensor, tokens: TokenTensors) -> Iterator[tuple[Tensor, TokenTensors]]:
        for start in range(0, len(hidden), self._logit_rows):
            part = slice(start, start + self._logit_rows)
            yield hidden[part], tokens.part(part)

    def _own_packs(self, sequences: Sequence[list[int]], predicted: Sequence[np.ndarray]) -> tuple[list[Pack], int]:
        """What this rank computes, and how many idle packs after it until the last rank is done."""
        inputs = [ids[: int(wanted[-1])] for ids, wanted in zip(sequences, predicted, strict=True)]
        packs = self._model.plan(inputs, self._budget)
        shares = [share_of_rank(packs, rank, self._ranks.count) for rank in range(self._ranks.count)]
        own = shares[self._ranks.rank]
        return own, max(map(len, shares)) - len(own)

    @override
    @torch.no_grad()
    def score(
        self, sequences: Sequence[list[int]], predicted: Sequence[np.ndarray], *, reference: bool
    ) -> list[list[float]]:
        if not sequences:
            return []
        own: dict[int, list[float]] = {}
        packs, num_idle = self._own_packs(sequences, predicted)
        with self._reference_weights() if reference else nullcontext():
            for pack in packs:
                layout = self._model.layout(pack, sequences, predicted)
                values = self._model.run(layout, partial(self._logprobs, targets=layout.targets))
                counts = [len(predicted[member.sequence]) for member in pack.members]
                for member, part in zip(pack.members, torch.split(values, counts), strict=True):
                    own[member.sequence] = part.tolist()
            for _ in range(num_idle):
                self._model.run(self._model.idle_layout(), lambda hidden: hidden)
            self._model.rest()
        everyone: dict[int, list[float]] = {}
        for part_of_rank in self._ranks.gather(own):
            everyone |= part_of_rank
        return [everyone[i] for i in range(len(sequences))]

    def _logprobs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        rows = zip(torch.split(hidden, self._logit_rows), torch.split(targets, self._logit_rows), strict=True)
        return torch.cat([self._model.logits(part).log_softmax(-1).gather(1, ids[:, None])[:, 0] for part, ids in rows])

    @contextmanager
    def _reference_weights(self) -> Iterator[None]:
        """Put the initial weights in the place of the trained ones for the length of a block."""
        if self._adapters is not None:
            with self._adapters.disabled():
                yield
            return
        parameters = [p.detach() for p in self._model.module.parameters()]
        if self._reference is None:
            initial = load_module(self._model_path, self._dtype).parameters()
            self._reference = [part_like(p.detach(), like).clone() for p, like in zip(initial, parameters, strict=True)]
        own = [own_part(p) for p in parameters]
        trained = [part.clone() for part in own]
        try:
            for part, initial_part in zip(own, self._reference, strict=True):
                part.copy_(initial_part)
            yield
        finally:
            for part, trained_part in zip(own, trained, strict=True):
                part.copy_(trained_part)
