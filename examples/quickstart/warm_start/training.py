"""Supervised training of a very small Qwen3, on one thread of one core."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from warm_start.lessons import Lesson


@dataclass(frozen=True, slots=True)
class Course:
    """One run over lessons."""

    steps: int
    batch_size: int
    decay: float
    """Share of the steps, at the end, over which the learning rate falls to nothing."""


def new_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Qwen3ForCausalLM:
    """Random weights in the shape of the policy."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=tokenizer.model_max_length,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    for name, weights in model.named_parameters():
        if weights.dim() == 2 and "embed" not in name:
            depth = (2 * config.num_hidden_layers) ** -0.5 if "o_proj" in name or "down_proj" in name else 1.0
            nn.init.normal_(weights, std=depth * weights.shape[1] ** -0.5)
    return model


class Teacher:
    """Muon for the matrices, AdamW for embeddings and norms; both keep their state from course to course."""

    def __init__(self, model: Qwen3ForCausalLM) -> None:
        self._model = model
        matrices = [weights for name, weights in model.named_parameters() if weights.dim() == 2 and "embed" not in name]
        others = [weights for name, weights in model.named_parameters() if weights.dim() != 2 or "embed" in name]
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=0.015, weight_decay=0.01, momentum=0.95),
            torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._peaks = [optimizer.param_groups[0]["lr"] for optimizer in self._optimizers]

    def teach(self, lessons: Sequence[Lesson], course: Course, rng: random.Random) -> Iterator[float]:
        """Go through the lessons in random order.

        Yields:
            The mean loss on tokens of full weight, in nats, step by step.
        """
        order: list[int] = []
        for step in range(course.steps):
            if len(order) < course.batch_size:
                order = rng.sample(range(len(lessons)), len(lessons))
            batch = [lessons[order.pop()] for _ in range(course.batch_size)]
            fall = (course.steps - step) / (course.steps * course.decay) if course.decay else 1.0
            yield self._step(batch, rate=min(1.0, (step + 1) / 20) * max(0.02, min(1.0, fall)))

    def _step(self, batch: Sequence[Lesson], *, rate: float) -> float:
        for optimizer, peak in zip(self._optimizers, self._peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * rate
            optimizer.zero_grad()
        token_ids = pad_sequence([torch.tensor(lesson.token_ids) for lesson in batch], batch_first=True)
        weights = pad_sequence([torch.tensor(lesson.weights) for lesson in batch], batch_first=True)[:, 1:]
        losses = _token_losses(self._model, token_ids)
        torch.autograd.backward(torch.sum(losses * weights) / weights.sum())
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
        return losses[weights == 1].mean().item()


def _token_losses(model: Qwen3ForCausalLM, token_ids: Tensor) -> Tensor:
    """Cross entropy of every token after the first; padding stands at the end, where causal attention never looks."""
    logits = model(input_ids=token_ids[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(logits.transpose(1, 2), token_ids[:, 1:], reduction="none")
