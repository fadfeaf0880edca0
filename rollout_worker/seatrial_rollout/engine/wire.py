"""The gateway's thin JSON and vLLM's own, as types that msgspec reads and writes without a copy in between."""

from typing import Any

import msgspec

from seatrial_rollout.engine.generation import Generation, GenerationRequest

decode_request = msgspec.json.Decoder(GenerationRequest).decode
decode_generation = msgspec.json.Decoder(Generation).decode
encode = msgspec.json.Encoder().encode


class _Token(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Token]


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Choice(msgspec.Struct):
    token_ids: list[int]
    finish_reason: str
    logprobs: _Logprobs
    weight_versions: list[_Span] | None = None
    routed_experts: str | None = None


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _CachedTokens | None = None


class _VllmAnswer(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


_decode_answer = msgspec.json.Decoder(_VllmAnswer).decode


def vllm_body(request: GenerationRequest, cache_salt: str) -> bytes:
    """The body for `/inference/v1/generate`.

    Args:
        request: What to generate.
        cache_salt: Requests share prefix-cache blocks only with requests of the same salt.
    """
    sampling: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop_token_ids": request.stop_token_ids,
        "logprobs": 0,  # of the sampled token alone
        "detokenize": False,
    }
    if request.routed_from:
        sampling["routed_experts_prompt_start"] = request.routed_from
    if request.structural_tag:
        sampling["structured_outputs"] = {"structural_tag": request.structural_tag}
    return encode({"token_ids": request.token_ids, "sampling_params": sampling, "cache_salt": cache_salt})


def read_vllm_answer(body: bytes) -> Generation:
    """Read the answer of `/inference/v1/generate`; the waiting time is the caller's to add.

    Raises:
        ValueError: the answer has no weight version, or a different number of tokens and logprobs.
    """
    answer = _decode_answer(body)
    choice = answer.choices[0]
    versions: list[int] = []
    for span in choice.weight_versions or []:
        versions += [int(span.version)] * (span.end - span.start)
    logprobs = [token.logprob for token in choice.logprobs.content]
    if not len(versions) == len(logprobs) == len(choice.token_ids):
        raise ValueError(
            f"vLLM returned {len(choice.token_ids)} tokens, {len(logprobs)} logprobs, {len(versions)} weight versions"
        )
    details = answer.usage.prompt_tokens_details
    return Generation(
        token_ids=choice.token_ids,
        logprobs=logprobs,
        weight_versions=versions,
        finish_reason=choice.finish_reason,
        routed_experts=choice.routed_experts or "",
        num_cached_tokens=(details.cached_tokens or 0) if details else 0,
    )
