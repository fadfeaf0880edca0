"""The policy backend on the Tinker service: forward and backward passes there, losses and batches here."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, override

import numpy as np
import tinker
import torch
from tinker import types
from torch import Tensor

from seatrial_api.errors import CorruptionError, InvalidInputError
from seatrial_trainer.policy import hugging_face
from seatrial_trainer.policy.batch import Minibatch, OptimStats, StepStats
from seatrial_trainer.policy.model_files import ModelFiles
from seatrial_trainer.policy.packing import Member, Pack
from seatrial_trainer.policy.ranks import Ranks
from seatrial_trainer.policy.scoring import ScoringBackend
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.step_totals import StepTotals
from seatrial_trainer.policy.tinker.merging import TrainedAdapters
from seatrial_trainer.policy.tinker.service import asking, download
from seatrial_trainer.policy.token_loss import weighted_loss
from seatrial_trainer.policy.token_tensors import TokenTensors, predicted_tokens

STATE_FILE = "tinker.json"
"""What a checkpoint holds here: where the service keeps the rest."""

EXPORT_SECONDS = 3600
"""The service keeps adapters for engines so long, its shortest."""


class TinkerBackend(ScoringBackend):
    """One policy, which the service holds; there are no ranks.

    The service computes log probabilities and, given their gradient, that of the adapters. The loss is a function of
    log probabilities, so every loss is computed here, as in the other backends, and costs a forward pass more.
    """

    def __init__(self, setup: PolicySetup, model_path: Path) -> None:
        source, lora = setup.model.source.hf, setup.model.lora
        if source is None or lora is None:
            msg = "trainer.backend: tinker trains adapters of models on its list; set model.source.hf and model.lora"
            raise InvalidInputError(msg)
        with ModelFiles(model_path) as files:
            self._weight_names = list(files.names)
        if any(".experts." in name for name in self._weight_names):
            msg = "model: the Tinker service trains adapters of experts, which cannot be merged for engines yet"
            raise InvalidInputError(msg)
        self._model_path = model_path
        self._dtype = getattr(torch, setup.model.dtype)
        self._optimizer = setup.optimizer
        self._base_model, self._rank, self._seed = source.repo, lora.rank, setup.seed
        with asking(f"open a session to train {source.repo}"):
            self._service = tinker.ServiceClient()
            try:
                self._policy = self._untrained()
            except BaseException:  # or its session is kept alive for as long as this process is
                self._service.close("errored").result()
                raise
        self._reference: Any = None
        self._num_saved = 0
        self._is_finite = True
        """Whether every loss since the last step was; the service gets no gradient of one that was not."""

    @override
    def forward_backward(self, minibatch: Minibatch) -> StepStats:
        started = time.monotonic()
        sequences = self.with_reference(minibatch.sequences)
        predicted = [predicted_tokens(sequence) for sequence in sequences]
        ids = [sequence.token_ids for sequence in sequences]
        num_read = sum(len(one) - 1 for one in ids)
        pack = Pack([Member(i, 0) for i in range(len(ids))], num_read)
        targets = torch.cat([torch.tensor(one)[wanted] for one, wanted in zip(ids, predicted, strict=True)])
        tokens = TokenTensors.of_pack(pack, sequences, predicted, targets, minibatch.fresh_version)
        totals = StepTotals(torch.device("cpu"))
        totals.add_pack(num_positions=num_read, num_padding=0, num_read=num_read)

        def loss(_data: list[types.Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
            chosen = torch.cat([row[wanted - 1] for row, wanted in zip(logprobs, predicted, strict=True)])
            # The service tells no entropy; the surprise at what was sampled is its estimate.
            value = weighted_loss(tokens, chosen, -chosen.detach(), minibatch, totals)
            self._is_finite = self._is_finite and bool(value.isfinite())
            return (value if self._is_finite else (chosen * 0.0).sum()), {}

        with asking("compute a gradient"):
            self._policy.forward_backward_custom([_datum(one) for one in ids], loss).result()
        return totals.stats(Ranks(), seconds=time.monotonic() - started)

    @override
    def optim_step(self, learning_rate: float) -> OptimStats:
        settings = types.AdamParams(
            learning_rate=learning_rate,
            beta1=self._optimizer.betas[0],
            beta2=self._optimizer.betas[1],
            eps=self._optimizer.epsilon,
            weight_decay=self._optimizer.weight_decay,
            grad_clip_norm=self._optimizer.max_grad_norm,
        )
        if not self._is_finite:
            self._is_finite = True
            return OptimStats(grad_norm=math.nan, learning_rate=learning_rate, skipped=True)
        with asking("step the optimiser"):
            metrics = self._policy.optim_step(settings).result().metrics or {}
        norm = metrics.get("unclipped_grad_l2:mean", 0.0)
        return OptimStats(grad_norm=norm, learning_rate=learning_rate)

    @override
    def score(
        self, sequences: Sequence[list[int]], predicted: Sequence[np.ndarray], *, reference: bool
    ) -> list[list[float]]:
        if not sequences:
            return []
        with asking("compute log probabilities"):
            client = self._untrained_reference() if reference else self._policy
            outputs = client.forward([_datum(ids) for ids in sequences], "cross_entropy").result().loss_fn_outputs
        rows = [np.asarray(output["logprobs"].data, dtype=np.float64) for output in outputs]
        return [row[wanted - 1].tolist() for row, wanted in zip(rows, predicted, strict=True)]

    @override
    def save(self, directory: Path) -> None:
        with asking("save a checkpoint"):
            path = self._policy.save_state(self._next_name("checkpoint")).result().path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / STATE_FILE).write_text(json.dumps({"path": path}))

    @override
    def load(self, directory: Path) -> None:
        try:
            path = json.loads((directory / STATE_FILE).read_text())["path"]
        except (OSError, ValueError, KeyError) as exc:
            msg = f"checkpoint {directory} cannot be restored: {type(exc).__name__}: {exc}"
            raise CorruptionError(msg) from exc
        with asking(f"restore {path}"):
            self._policy = self._service.create_training_client_from_state_with_optimizer(path).result()

    @override
    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._trained_adapters().merged(self._model_path, self._dtype)

    @override
    def export(self, directory: Path) -> int:
        dtype = str(self._dtype).removeprefix("torch.")
        return hugging_face.export(self.export_weights(), self._model_path, directory, dtype)

    def _untrained(self) -> Any:
        """A client of the base model with adapters that add nothing yet; the head gets none, as in other backends."""
        return self._service.create_lora_training_client(
            self._base_model, rank=self._rank, seed=self._seed, train_unembed=False
        ).result()

    def _untrained_reference(self) -> Any:
        if self._reference is None:
            self._reference = self._untrained()
        return self._reference

    def _trained_adapters(self) -> TrainedAdapters:
        with asking("export adapters"):
            name = self._next_name("engines")
            path = self._policy.save_weights_external(name, ttl_seconds=EXPORT_SECONDS).result().path
            urls = tinker.RestClient().get_external_weights_urls(path).result().urls
        wanted = ("adapter_config.json", "adapter_model.safetensors")
        return TrainedAdapters.read({name: download(urls, name) for name in wanted}, self._weight_names)

    def _next_name(self, kind: str) -> str:
        """Of something that the service keeps; unique in a client's own run."""
        self._num_saved += 1
        return f"{kind}-{self._num_saved}"


def _datum(ids: list[int]) -> types.Datum:
    """One sequence, every token of which is predicted from those before it."""
    return types.Datum(types.ModelInput.from_ints(ids[:-1]), {"target_tokens": np.asarray(ids[1:], dtype=np.int64)})  # type: ignore[dict-item]  # coerced
