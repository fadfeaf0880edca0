"""Anthropic's messages."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from seatrial_rollout.tito.proxy import reading
from seatrial_rollout.tito.proxy.demands import answer_schema, anthropic_choice, demand_of
from seatrial_rollout.tito.proxy.dialect import event
from seatrial_rollout.tito.proxy.errors import ContextOverflowError, InvalidRequestError, RequestError
from seatrial_rollout.tito.proxy.exchange import ChatRequest, Reply
from seatrial_rollout.tito.template import Message

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    529: "overloaded_error",
}
_SIGNATURE = "c2VhdHJpYWw="
"""Stands where Anthropic signs what its model thought; clients only send it back."""


class AnthropicMessages:
    """`/v1/messages`."""

    keep_alive: ClassVar[bytes] = event({"type": "ping"}, "ping")

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Understand a request."""
        messages: list[Message] = []
        if system := reading.text(body.get("system"), "system"):
            messages.append({"role": "system", "content": system})
        for message in reading.objects(body, "messages", is_needed=True):
            _append(messages, message)
        choice = anthropic_choice(body.get("tool_choice"))
        # What has no schema runs at Anthropic's, where the policy is not.
        given = [tool for tool in reading.objects(body, "tools") if "input_schema" in tool]
        tools = [reading.tool_schema(tool, "input_schema") for tool in given]
        schema = answer_schema(reading.member(body, "output_config", "format"), "output_config.format")
        return ChatRequest(
            messages=messages,
            tools=[] if choice[0] == "none" else tools,
            demand=demand_of(choice, tools, schema, "output_config.format"),
            is_single_call=_calls_one(body.get("tool_choice")),
            max_tokens=reading.integer(body, "max_tokens"),
            temperature=reading.number(body, "temperature", maximum=1),
            top_p=reading.nucleus(body),
            stop=reading.texts(body, "stop_sequences"),
            stream=bool(body.get("stream")),
            body=body,
        )

    def write(self, reply: Reply, request: ChatRequest) -> dict[str, Any]:
        """An answer as one object."""
        ending = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stop}
        return _frame(reply, request) | {"content": _blocks(reply), "usage": _usage(reply)} | ending

    def events(self, reply: Reply, request: ChatRequest) -> Iterator[bytes]:
        """An answer as events."""
        usage = _usage(reply)
        opening = _frame(reply, request) | {"content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message=opening | {"usage": usage | {"output_tokens": 1}})
        for index, block in enumerate(_blocks(reply)):
            empty, deltas = _streamed(block)
            yield _event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        ending = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stop}
        yield _event("message_delta", delta=ending, usage=usage)
        yield _event("message_stop")

    def status(self, error: RequestError) -> int:
        """HTTP status of an error."""
        return 529 if error.status == 503 else error.status

    def error(self, error: RequestError) -> dict[str, Any]:
        """An error as an object."""
        told = str(error)
        if isinstance(error, ContextOverflowError):
            told = f"prompt is too long: {error.num_tokens} tokens > {error.limit} maximum"
        return {"type": "error", "error": {"type": _ERRORS.get(self.status(error), "api_error"), "message": told}}

    def error_event(self, error: RequestError) -> bytes:
        """An error once a stream has begun."""
        return event(self.error(error), "error")


def _calls_one(choice: Any) -> bool:
    return isinstance(choice, dict) and reading.flag(choice, "disable_parallel_tool_use", default=False)


def _append(messages: list[Message], message: Mapping[str, Any]) -> None:
    """Add a message as templates read it; the answers to tool calls come as blocks of the user's."""
    role, content = message.get("role"), message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if not all(isinstance(block, dict) for block in blocks):
        raise InvalidRequestError("messages: content has to be a text or a list of blocks", param="messages")
    match role:
        case "assistant" if messages and messages[-1]["role"] == "assistant":
            messages.append(_joined(messages.pop(), _assistant(blocks)))
        case "assistant":
            messages.append(_assistant(blocks))
        case "user" | "system":
            messages.extend(_answer(block) for block in blocks if block.get("type") == "tool_result")
            rest = [block for block in blocks if block.get("type") != "tool_result"]
            if rest:
                messages.append({"role": role, "content": reading.text(rest, "messages")})
        case _:
            raise InvalidRequestError(f"messages: there is no role {role!r}", param="messages")


def _assistant(blocks: list[dict[str, Any]]) -> Message:
    said = [block for block in blocks if block.get("type") == "text"]
    thought = [str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking"]
    calls = [(str(block.get("id")), str(block.get("name")), block.get("input")) for block in blocks if _is_call(block)]
    return reading.assistant(reading.text(said, "messages"), calls, "\n".join(thought))


def _joined(first: Message, second: Message) -> Message:
    """Two messages of the assistant as the one turn that Anthropic takes them for."""
    joined = first | second | {"content": "\n".join(filter(None, [first["content"], second["content"]]))}
    calls = [*first.get("tool_calls", []), *second.get("tool_calls", [])]
    return joined | {"tool_calls": calls} if calls else joined


def _is_call(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "tool_use"


def _answer(block: Mapping[str, Any]) -> Message:
    answer: Message = {
        "role": "tool",
        "tool_call_id": str(block.get("tool_use_id")),
        "content": reading.text(block.get("content"), "messages"),
    }
    return answer | {"is_error": True} if block.get("is_error") else answer


def _frame(reply: Reply, request: ChatRequest) -> dict[str, Any]:
    model = request.body.get("model", "")
    return {"id": f"msg_{reply.reply_id}", "type": "message", "role": "assistant", "model": model}


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": _SIGNATURE})
    if reply.content:
        blocks.append({"type": "text", "text": reply.content})
    return blocks + [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": json.loads(call.arguments)}
        for call in reply.calls
    ]


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block before its content, and its content as deltas."""
    match block["type"]:
        case "thinking":
            signed = {"type": "signature_delta", "signature": block["signature"]}
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}, signed]
            return block | {"thinking": "", "signature": ""}, deltas
        case "text":
            return block | {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case _:
            written = json.dumps(block["input"], ensure_ascii=False)
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": written}]


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name} | fields, name)


def _stop_reason(reply: Reply) -> str:
    if reply.is_cut:
        return "max_tokens"
    if reply.stop is not None:
        return "stop_sequence"
    return "tool_use" if reply.calls else "end_turn"


def _usage(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
