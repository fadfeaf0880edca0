"""OpenAI's chat completions, and Anthropic's messages told in their words: pure translation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from seatrial_api.spec.judge import JudgeProvider

COMPLETIONS = "/v1/chat/completions"
"""Path of the gateway for questions."""
MODELS = "/v1/models"
"""Path that lists what may be asked."""
VERIFICATION = "/v1/verification"
"""Path that tells how a trial's questions ended."""
_ANTHROPIC_VERSION = "2023-06-01"
_DEFAULT_COMPLETION_TOKENS = 4096
"""Anthropic wants a bound; the expected length of an answer whose question sets none."""
_CHARS_PER_TOKEN = 3
"""Few enough that an estimate is rather too high."""
_SAME_IN_BOTH = ("temperature", "top_p")
_FINISH_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "refusal": "content_filter"}


class WireError(Exception):
    """An answer that is none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A chat completion as the client gets it."""

    body: dict[str, Any]
    text: str
    """What the model said."""
    prompt_tokens: int
    completion_tokens: int


def fault(body: Mapping[str, Any]) -> str:
    """What is wrong with a question; empty if it can be sent."""
    messages = body.get("messages")
    if not isinstance(body.get("model"), str):
        return "model is missing"
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        return "messages is no list of messages"
    if body.get("stream"):
        return "the judge answers whole; leave stream out"
    if body.get("n") not in {None, 1}:
        return "the judge answers once; ask again with another seed instead of n"
    return ""


def completion_bound(body: Mapping[str, Any]) -> int:
    """Most tokens that an answer may have, or is expected to."""
    bound = body.get("max_completion_tokens") or body.get("max_tokens")
    return bound if isinstance(bound, int) and bound > 0 else _DEFAULT_COMPLETION_TOKENS


def expected_prompt_tokens(body: Mapping[str, Any]) -> int:
    """Length of a question, guessed from its text; rather too many."""
    return len(json.dumps(body["messages"], ensure_ascii=False)) // _CHARS_PER_TOKEN + 1


def request(
    provider: JudgeProvider, upstream_model: str, secret: str, body: Mapping[str, Any]
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Address, headers and content by which a provider is asked.

    Args:
        provider: Who is asked.
        upstream_model: The model as the provider calls it.
        secret: The key.
        body: The question as the client has put it.
    """
    base = provider.base_url.rstrip("/")
    match provider.api:
        case "OpenAI":
            return f"{base}/chat/completions", {"Authorization": f"Bearer {secret}"}, {**body, "model": upstream_model}
        case "Anthropic":
            headers = {"x-api-key": secret, "anthropic-version": _ANTHROPIC_VERSION}
            return f"{base}/messages", headers, _anthropic_question(upstream_model, body)
        case _:
            assert_never(provider.api)


def answer(provider: JudgeProvider, model: str, data: bytes) -> Answer:
    """A provider's answer as a chat completion.

    Args:
        provider: Who has answered.
        model: The model as the client calls it.
        data: The answer.

    Raises:
        WireError: if it is none.
    """
    try:
        content = json.loads(data)
        body = content if provider.api == "OpenAI" else _chat_completion(content)
        usage = body["usage"]
        text = str(body["choices"][0]["message"]["content"] or "")
        return Answer({**body, "model": model}, text, int(usage["prompt_tokens"]), int(usage["completion_tokens"]))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise WireError(f"no chat completion: {exc!r}: {data[:200].decode(errors='replace')}") from exc


def _anthropic_question(model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    turns = [message for message in body["messages"] if message.get("role") not in {"system", "developer"}]
    system = [_text(message) for message in body["messages"] if message.get("role") in {"system", "developer"}]
    question: dict[str, Any] = {"model": model, "max_tokens": completion_bound(body)}
    question["messages"] = [{"role": turn.get("role"), "content": _text(turn)} for turn in turns]
    if system:
        question["system"] = "\n\n".join(system)
    if (stop := body.get("stop")) is not None:
        question["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    return question | {name: body[name] for name in _SAME_IN_BOTH if body.get(name) is not None}


def _chat_completion(message: Mapping[str, Any]) -> dict[str, Any]:
    usage = message["usage"]
    cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
    prompt, completion = usage["input_tokens"] + cached, usage["output_tokens"]
    reason = _FINISH_REASONS.get(message.get("stop_reason") or "", "stop")
    said = {"role": "assistant", "content": "".join(part.get("text", "") for part in message["content"])}
    return {
        "id": message.get("id", ""),
        "object": "chat.completion",
        "choices": [{"index": 0, "message": said, "finish_reason": reason}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }


def _text(message: Mapping[str, Any]) -> str:
    """A message's text, of however many parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return str(content or "")
