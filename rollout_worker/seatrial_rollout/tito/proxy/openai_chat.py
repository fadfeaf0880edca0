"""OpenAI's chat completions."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from seatrial_rollout.tito.proxy import reading
from seatrial_rollout.tito.proxy.demands import answer_schema, demand_of, openai_choice
from seatrial_rollout.tito.proxy.dialect import COMMENT, event
from seatrial_rollout.tito.proxy.errors import InvalidRequestError, RequestError
from seatrial_rollout.tito.proxy.exchange import ChatRequest, Reply, ReplyCall
from seatrial_rollout.tito.template import Message


class OpenAIErrors:
    """How OpenAI's APIs tell of errors."""

    keep_alive: ClassVar[bytes] = COMMENT

    def status(self, error: RequestError) -> int:
        """HTTP status of an error."""
        return error.status

    def error(self, error: RequestError) -> dict[str, Any]:
        """An error as an object."""
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


class OpenAIChat(OpenAIErrors):
    """`/v1/chat/completions`."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Understand a request."""
        if (body.get("n") or 1) != 1:
            raise InvalidRequestError("n: one answer a request is all there is", param="n")
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise InvalidRequestError("stream_options has to be an object", param="stream_options")
        tools = [
            _function(tool) for tool in reading.objects(body, "tools") if tool.get("type", "function") == "function"
        ]
        choice = openai_choice(body.get("tool_choice"))
        schema = answer_schema(body.get("response_format"), "response_format")
        return ChatRequest(
            messages=[_message(each) for each in reading.objects(body, "messages", is_needed=True)],
            tools=[] if choice[0] == "none" else tools,
            demand=demand_of(choice, tools, schema, "response_format"),
            is_single_call=not reading.flag(body, "parallel_tool_calls", default=True),
            max_tokens=reading.integer(body, "max_completion_tokens") or reading.integer(body, "max_tokens"),
            temperature=reading.number(body, "temperature", maximum=2),
            top_p=reading.nucleus(body),
            stop=reading.texts(body, "stop"),
            stream=bool(body.get("stream")),
            body=body,
        )

    def write(self, reply: Reply, request: ChatRequest) -> dict[str, Any]:
        """An answer as one object."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.content or None, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [_call(call) for call in reply.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
        return _frame(reply, request, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}

    def events(self, reply: Reply, request: ChatRequest) -> Iterator[bytes]:
        """An answer as chunks."""
        frame = _frame(reply, request, "chat.completion.chunk")
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": reply.reasoning}] if reply.reasoning else []
        deltas += [{"content": reply.content}] if reply.content else []
        deltas += [{"tool_calls": [{"index": index} | _call(call)]} for index, call in enumerate(reply.calls)]
        for delta in deltas:
            yield event(frame | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        yield event(frame | {"choices": [{"index": 0, "delta": {}, "finish_reason": _finish_reason(reply)}]})
        if (request.body.get("stream_options") or {}).get("include_usage"):
            yield event(frame | {"choices": [], "usage": _usage(reply)})
        yield b"data: [DONE]\n\n"

    def error_event(self, error: RequestError) -> bytes:
        """An error once a stream has begun."""
        return event(self.error(error))


def _message(message: Mapping[str, Any]) -> Message:
    role = message.get("role")
    content = reading.text(message.get("content"), "messages")
    match role:
        case "assistant":
            calls = [_called(call) for call in reading.objects(message, "tool_calls")]
            reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
            return reading.assistant(content, calls, reading.text(reasoning, "messages"))
        case "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str):
                raise InvalidRequestError("a message of role tool needs a tool_call_id", param="messages")
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        case "system" | "developer":
            return {"role": "system", "content": content}
        case "user":
            return {"role": "user", "content": content}
        case _:
            raise InvalidRequestError(f"messages: there is no role {role!r}", param="messages")


def _called(call: Mapping[str, Any]) -> tuple[str, str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(call.get("id"), str):
        raise InvalidRequestError("a tool call needs an id and a function", param="messages")
    return call["id"], str(function.get("name")), function.get("arguments")


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidRequestError("a tool of type function needs a function", param="tools")
    return reading.tool_schema(function, "parameters")


def _call(call: ReplyCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _frame(reply: Reply, request: ChatRequest, kind: str) -> dict[str, Any]:
    model = request.body.get("model", "")
    return {"id": f"chatcmpl-{reply.reply_id}", "object": kind, "created": reply.created, "model": model}


def _finish_reason(reply: Reply) -> str:
    if reply.is_cut:
        return "length"
    return "tool_calls" if reply.calls else "stop"


def _usage(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
