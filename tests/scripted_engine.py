"""An engine for tests that says what it is told to say."""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import pre_tokenizers

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.tito.template import ChatTemplate


@dataclass(frozen=True)
class Said:
    """What the scripted policy says in one turn."""

    text: str
    stop: str = ""
    """Stop token behind the text; the template's first one if empty."""
    finish_reason: str = "stop"
    """With `length` no stop token follows."""
    waited_seconds: float = 0.0
    takes_seconds: float = 0.0


class ScriptedEngine:
    """Answers each request with the next line of its script, in single-byte tokens where asked to.

    It stands in for a model, not for an engine: what it returns has the form of a real generation, but nothing is
    sampled and the log-probabilities are made up.
    """

    def __init__(self, template: ChatTemplate, script: Iterable[Said | str], *, in_bytes: bool = False) -> None:
        self._template = template
        self._script = iter(script)
        self._in_bytes = in_bytes
        self.requests: list[GenerationRequest] = []
        self.made: list[list[int]] = []
        """The tokens of each turn."""

    def follow(self, script: Iterable[Said | str]) -> None:
        """Take up another script."""
        self._script = iter(script)

    async def generate(self, request: GenerationRequest) -> Generation:
        """The next line, cut to `max_tokens`."""
        self.requests.append(request)
        line = next(self._script)
        said = Said(line) if isinstance(line, str) else line
        if said.takes_seconds:
            await SYSTEM_CLOCK.sleep(said.takes_seconds)
        ids = self._tokens(said)
        is_cut = len(ids) > request.max_tokens
        ids = ids[: request.max_tokens]
        self.made.append(ids)
        return Generation(
            token_ids=ids,
            logprobs=[-0.25] * len(ids),
            weight_versions=[len(self.requests)] * len(ids),
            finish_reason="length" if is_cut else said.finish_reason,
            waited_seconds=said.waited_seconds,
        )

    def _tokens(self, said: Said) -> list[int]:
        ids = self._split_bytes(said.text) if self._in_bytes else self._template.encode(said.text)
        if said.finish_reason != "stop":
            return ids
        stop = said.stop or next(iter(self._template.stop_tokens))
        return [*ids, self._template.stop_tokens[stop]]

    def _split_bytes(self, text: str) -> list[int]:
        """The text in tokens of one byte each, as no tokenizer would write it and a model may."""
        spelled = _BYTES.pre_tokenize_str(text)
        return [self._template.tokenizer.token_to_id(byte) for piece, _ in spelled for byte in piece]


_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
