"""A policy in this process that lets many trials speak at once, turn by turn, and keeps what it has read.

For comparisons of training alone: an engine's log probabilities and token-exact sessions without an engine's process.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its customary name
from torch import Tensor, nn

from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_trainer.policy.causal_lm import load_module

ATTENTION = "seatrial_lockstep"
"""Name under which transformers knows this attention."""


@dataclass
class _Memory:
    """Keys and values by layer, of shape (rows, heads, positions, head size); where a token lies is its position."""

    keys: list[Tensor]
    values: list[Tensor]

    def rows(self, chosen: list[int]) -> "_Memory":
        return _Memory([keys[chosen] for keys in self.keys], [values[chosen] for values in self.values])


@dataclass(frozen=True)
class _Reading:
    """What the attention has to know while some tokens are read."""

    memory: _Memory
    places: Tensor
    """Of the tokens, by row."""
    is_seen: Tensor
    """Of shape (rows, tokens, places)."""


@dataclass
class _Speaker:
    """One trial's turn in the making."""

    request: GenerationRequest
    answer: asyncio.Future[Generation]
    rng: random.Random
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def finish_reason(self) -> str:
        """Empty while it speaks."""
        if self.token_ids and self.token_ids[-1] in self.request.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) >= self.request.max_tokens else ""

    def say(self, logprobs: Tensor, cumulated: Tensor) -> None:
        """Sample a token; at temperature 0 the likeliest."""
        if self.request.temperature == 0:
            token = int(logprobs.argmax())
        else:
            token = min(int(torch.searchsorted(cumulated, self.rng.random())), len(logprobs) - 1)
        self.token_ids.append(token)
        self.logprobs.append(float(logprobs[token]))


class LockstepEngine:
    """Generates for the trials inside of `trials()` as soon as all that go on have asked for their next turn.

    A trial's id seeds what it samples, so that two policies meet the same luck. A conversation is append-only, and a
    trial that has ended never speaks again.
    """

    def __init__(self, model_path: Path, context_length: int, max_turn_tokens: int) -> None:
        from transformers import AttentionInterface  # noqa: PLC0415  heavy

        AttentionInterface.register(ATTENTION, _attend)
        self._module = load_module(model_path, torch.float32).eval()
        self._module.set_attn_implementation(ATTENTION)
        self._length = context_length + max_turn_tokens + 1  # what nobody reads is written to the last place
        self._version = 0
        self._going_on = 0
        self._waiting: list[_Speaker] = []
        self._order: list[str] = []
        self._num_read: dict[str, int] = {}
        self._rngs: dict[str, random.Random] = {}
        self._memory = _Memory([], [])

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Speak with these weights from now on."""
        self._module.load_state_dict(dict(weights), strict=False)  # a tied head has no entry of its own
        self._version = version

    @contextmanager
    def trials(self, trial_ids: list[str]) -> Iterator[None]:
        """Begin a set of trials; each has to `leave` when it ends."""
        config = self._module.config
        shape = (len(trial_ids), config.num_key_value_heads, self._length, config.head_dim)
        layers = range(config.num_hidden_layers)
        self._memory = _Memory([torch.zeros(shape) for _ in layers], [torch.zeros(shape) for _ in layers])
        self._going_on, self._order = len(trial_ids), list(trial_ids)
        self._num_read = dict.fromkeys(trial_ids, 0)
        self._rngs = {trial_id: random.Random(trial_id) for trial_id in trial_ids}  # noqa: S311  reproducible
        yield
        self._memory = _Memory([], [])

    def leave(self) -> None:
        """A trial has ended."""
        self._going_on -= 1
        self._speak_if_all_ask()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Continue a token prompt."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Speaker(request, answer, self._rngs[request.trial_id]))
        self._speak_if_all_ask()
        return await answer

    def _speak_if_all_ask(self) -> None:
        if self._waiting and len(self._waiting) == self._going_on:
            by_trial = {speaker.request.trial_id: speaker for speaker in self._waiting}
            self._waiting = []
            self._speak(by_trial)

    @torch.inference_mode()
    def _speak(self, by_trial: dict[str, _Speaker]) -> None:
        rows = [row for row, trial_id in enumerate(self._order) if trial_id in by_trial]
        if len(rows) < len(self._order):
            self._memory = self._memory.rows(rows)
            self._order = [self._order[row] for row in rows]
        speakers = [by_trial[trial_id] for trial_id in self._order]
        logits, memory = self._read_prompts(speakers), self._memory
        while True:
            self._sample(speakers, logits)
            if all(speaker.finish_reason for speaker in speakers):
                break
            rows = [row for row, speaker in enumerate(speakers) if not speaker.finish_reason]
            if 2 * len(rows) <= len(speakers):
                memory, speakers = memory.rows(rows), [speakers[row] for row in rows]
            last = [[speaker.token_ids[-1]] for speaker in speakers]
            places = [len(speaker.request.token_ids) + len(speaker.token_ids) - 1 for speaker in speakers]
            logits = self._run(memory, last, places)
        for speaker in by_trial.values():
            num_tokens = len(speaker.token_ids)
            versions = [self._version] * num_tokens
            speaker.answer.set_result(
                Generation(speaker.token_ids, speaker.logprobs, versions, finish_reason=speaker.finish_reason)
            )

    def _read_prompts(self, speakers: list[_Speaker]) -> Tensor:
        """Read what is new in the prompts. What a policy said is read once more: its memory may be a copy's."""
        starts = [self._num_read[speaker.request.trial_id] for speaker in speakers]
        new = [speaker.request.token_ids[start:] for speaker, start in zip(speakers, starts, strict=True)]
        for speaker in speakers:
            self._num_read[speaker.request.trial_id] = len(speaker.request.token_ids)
        return self._run(self._memory, new, starts)

    @staticmethod
    def _sample(speakers: list[_Speaker], logits: Tensor) -> None:
        distribution = logits.log_softmax(-1)
        cumulated = distribution.double().exp().cumsum(-1)
        for row, speaker in enumerate(speakers):
            if not speaker.finish_reason:
                speaker.say(distribution[row], cumulated[row])

    def _run(self, memory: _Memory, new: list[list[int]], starts: list[int]) -> Tensor:
        """Read tokens, each row from a place of its own; returns the logits behind each row's last."""
        width = max(map(len, new))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in new])
        places = (torch.tensor(starts)[:, None] + torch.arange(width)).clamp(max=self._length - 1)
        end = max(start + len(row) for start, row in zip(starts, new, strict=True))
        reading = _Reading(memory, places, is_seen=torch.arange(end) <= places[:, :, None])
        hidden = self._module.get_decoder()(
            input_ids=ids, position_ids=places, use_cache=False, reading=reading
        ).last_hidden_state
        last = torch.tensor([len(row) - 1 for row in new])
        logits: Tensor = self._module.get_output_embeddings()(hidden[torch.arange(len(new)), last])
        return logits.float()


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor | None, *, reading: _Reading, **_: Any
) -> tuple[Tensor, None]:
    """Attention over all that each row has read, as transformers calls it."""
    keys, values = reading.memory.keys[module.layer_idx], reading.memory.values[module.layer_idx]
    rows = torch.arange(len(reading.places))[:, None]
    keys[rows, :, reading.places] = key.transpose(1, 2)
    values[rows, :, reading.places] = value.transpose(1, 2)
    num_rows, num_heads, num_queries, size = query.shape
    shared = num_heads // keys.shape[1]
    end = reading.is_seen.shape[-1]
    result = F.scaled_dot_product_attention(
        query.reshape(num_rows, keys.shape[1], shared * num_queries, size),
        keys[:, :, :end],
        values[:, :, :end],
        attn_mask=reading.is_seen[:, None].repeat(1, 1, shared, 1),
    )
    return result.view(num_rows, num_heads, num_queries, size).transpose(1, 2), None
