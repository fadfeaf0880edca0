"""The policy backend on megatron-core: packed micro-batches through a pipeline of layers that are cut over ranks."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, override

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor
from transformers import AutoConfig

from seatrial_trainer.policy import hugging_face
from seatrial_trainer.policy.batch import Minibatch, OptimStats, StepStats
from seatrial_trainer.policy.megatron import checkpoint, model
from seatrial_trainer.policy.megatron.adapters import Adapters
from seatrial_trainer.policy.megatron.families import family_of
from seatrial_trainer.policy.megatron.head import Head
from seatrial_trainer.policy.megatron.mesh import Mesh
from seatrial_trainer.policy.megatron.microbatches import Microbatch
from seatrial_trainer.policy.megatron.optimizer import Optimizer
from seatrial_trainer.policy.megatron.replay import RouterReplay
from seatrial_trainer.policy.megatron.stages import exchanges
from seatrial_trainer.policy.megatron.transfer import WeightTransfer
from seatrial_trainer.policy.model_files import ModelFiles, weights_like
from seatrial_trainer.policy.packing import plan_packed, share_of_rank
from seatrial_trainer.policy.scoring import ScoringBackend
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.step_totals import StepTotals
from seatrial_trainer.policy.token_loss import weighted_loss
from seatrial_trainer.policy.token_tensors import TokenTensors, predicted_tokens

LOGITS_BYTES = {"cpu": 16 << 20, "cuda": 512 << 20}
"""This rank's part of the logits of so many bytes at most exists at once."""


class MegatronBackend(ScoringBackend):
    """One rank's part of the policy.

    Every method is a collective. The loss is a sum over tokens: each replica adds up its own packs, and gradients are
    added over replicas when the optimiser steps, so that packing, order and layout never change them.
    """

    def __init__(self, setup: PolicySetup, model_path: Path) -> None:
        self._device = torch.device(torch.cuda.current_device())
        self._model_path = model_path
        self._dtype = getattr(torch, setup.model.dtype)
        self._budget = setup.trainer.max_tokens_per_microbatch
        hf_config = AutoConfig.from_pretrained(model_path)
        self._config = model.transformer_config(hf_config, setup.trainer, self._dtype)
        self._mesh = Mesh.form(setup.trainer.parallelism, seed=setup.seed)
        self._model = model.build(self._config, hf_config, self._mesh)
        self._family = family_of(hf_config)
        with ModelFiles(model_path) as files:
            stored = files.names
        self._transfer = WeightTransfer(
            self._model,
            self._family.weights(hf_config, stored),
            self._mesh,
            self._config,
        )
        self._transfer.load(model_path)
        lora = setup.model.lora
        self._adapters = Adapters(self._model, self._transfer, lora, self._mesh, seed=setup.seed) if lora else None
        self._ddp = [model.distribute(chunk, self._config) for chunk in self._model]
        self._optimizer = Optimizer(
            self._ddp, setup.optimizer, self._dtype, self._mesh, offload=setup.trainer.offload_optimizer
        )
        vocab_size = hf_config.get_text_config().vocab_size
        rank_vocab = -(-vocab_size // self._mesh.sizes.tensor)
        self._replay = RouterReplay(
            self._model if setup.trainer.router_replay else [],
            self._mesh,
            recomputes=setup.trainer.recompute == "Full",
        )
        self._head = Head(vocab_size, rows=max(1, LOGITS_BYTES[self._device.type] // (4 * rank_vocab)))

    @override
    def forward_backward(self, minibatch: Minibatch) -> StepStats:
        started = time.monotonic()
        totals = StepTotals(self._device)
        with self._replay.of(minibatch.sequences):
            sequences = self.with_reference(minibatch.sequences)
            predicted = [predicted_tokens(sequence) for sequence in sequences]

            def loss(batch: Microbatch, logprobs: Tensor, entropy: Tensor) -> Tensor:
                tokens = TokenTensors.of_pack(batch.pack, sequences, predicted, batch.targets, minibatch.fresh_version)
                totals.add_pack(
                    num_positions=batch.pack.num_positions,
                    num_padding=batch.pack.num_padding,
                    num_read=batch.pack.num_positions - batch.pack.num_padding,
                )
                return weighted_loss(tokens, logprobs, entropy, minibatch, totals)

            self._run([sequence.token_ids for sequence in sequences], predicted, loss, trains=True)
        return totals.stats(self._mesh, seconds=time.monotonic() - started)

    @override
    def optim_step(self, learning_rate: float) -> OptimStats:
        return self._optimizer.step(learning_rate)

    @override
    def save(self, directory: Path) -> None:
        checkpoint.save(directory, self._model, self._adapters, self._optimizer)

    @override
    def load(self, directory: Path) -> None:
        checkpoint.load(directory, self._model, self._adapters, self._optimizer)

    @override
    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._transfer.export(self._dtype, self._adapters.merged if self._adapters else None)

    @override
    def export(self, directory: Path) -> int:
        weights = self.export_weights()
        if dist.get_rank() != 0:
            return sum(tensor.nbytes for _, tensor in weights)
        weights = chain(weights, weights_like(self._family.frozen, self._model_path))
        return hugging_face.export(weights, self._model_path, directory, str(self._dtype).removeprefix("torch."))

    def _run(
        self,
        sequences: Sequence[list[int]],
        predicted: Sequence[np.ndarray],
        at_head: Callable[[Microbatch, Tensor, Tensor], Tensor],
        *,
        trains: bool,
    ) -> None:
        """Send this replica's packs through the pipeline; what the last stage makes of the tokens is differentiated."""
        inputs = [ids[: int(wanted[-1])] for ids, wanted in zip(sequences, predicted, strict=True)]
        packs = share_of_rank(plan_packed(inputs, self._budget), self._mesh.data_rank, self._mesh.data)
        batches = [Microbatch.of_pack(pack, sequences, predicted, self._device, self._mesh) for pack in packs]
        idle = Microbatch.idle(self._device, self._mesh)
        batches += [idle] * (self._mesh.num_turns(len(batches)) - len(batches))
        self._replay.begin()

        def process(
            hidden_states: Tensor, output_layer: Any, output_weight: Tensor | None, context: Microbatch, **_: Any
        ) -> Tensor:
            if len(context.targets) == 0:
                return hidden_states.sum() * 0.0
            own = context.targets[context.own]
            figures = self._head(hidden_states, output_layer, output_weight, context.predictor, own)
            return at_head(context, *(self._mesh.joined(one, context.own, len(context.targets)) for one in figures))

        def forward(data: Iterator[Microbatch], stage: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
            batch = next(data)
            self._replay.turn(batch, sequences)
            output = stage(
                batch.input_ids,
                batch.sequences.positions,
                None,
                packed_seq_params=batch.sequences,
                output_processor=process,
                output_processor_context=batch,
            )
            return output, lambda loss: (loss, torch.ones((), dtype=torch.int64), {})

        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=[iter(batches) for _ in self._ddp],
            model=self._ddp,
            num_microbatches=len(batches),
            seq_length=1,  # lengths vary and are told from stage to stage
            micro_batch_size=1,
            forward_only=not trains,
            **exchanges(self._config),
        )

    @override
    @torch.no_grad()
    def score(
        self, sequences: Sequence[list[int]], predicted: Sequence[np.ndarray], *, reference: bool
    ) -> list[list[float]]:
        if not sequences:
            return []
        own: dict[int, list[float]] = {}

        def keep(batch: Microbatch, logprobs: Tensor, _entropy: Tensor) -> Tensor:
            counts = [len(predicted[member.sequence]) for member in batch.pack.members]
            for member, part in zip(batch.pack.members, torch.split(logprobs, counts), strict=True):
                own[member.sequence] = part.tolist()
            return logprobs.sum()

        with self._reference_weights() if reference else nullcontext():
            self._run(sequences, predicted, keep, trains=False)
        parts: list[dict[int, list[float]]] = [{}] * dist.get_world_size()
        dist.all_gather_object(parts, own)
        everyone = {i: values for part in parts for i, values in part.items()}
        return [everyone[i] for i in range(len(sequences))]

    @contextmanager
    def _reference_weights(self) -> Iterator[None]:
        """Put the initial weights in the place of the trained ones for the length of a block."""
        if self._adapters is not None:
            with self._adapters.disabled():
                yield
            return
        parameters = [p for chunk in self._model for p in chunk.parameters()]
        trained = [p.detach().to("cpu", copy=True) for p in parameters]
        self._transfer.load(self._model_path)
        try:
            yield
        finally:
            for p, value in zip(parameters, trained, strict=True):
                p.data.copy_(value)
