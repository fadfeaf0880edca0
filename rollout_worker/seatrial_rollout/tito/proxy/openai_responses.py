"""OpenAI's responses."""

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from seatrial_rollout.tito.proxy import reading
from seatrial_rollout.tito.proxy.demands import answer_schema, demand_of, openai_choice
from seatrial_rollout.tito.proxy.dialect import event
from seatrial_rollout.tito.proxy.errors import InvalidRequestError, RequestError
from seatrial_rollout.tito.proxy.exchange import ChatRequest, Reply, ReplyCall
from seatrial_rollout.tito.proxy.openai_chat import OpenAIErrors
from seatrial_rollout.tito.template import Message, ToolSchema

_FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""What the policy sees of a `custom` tool, which takes a text where others take JSON."""
_OF_THE_ASSISTANT = frozenset({"reasoning", "function_call", "custom_tool_call"})
_ANSWERS = frozenset({"function_call_output", "custom_tool_call_output"})


class OpenAIResponses(OpenAIErrors):
    """`/v1/responses`; nothing is stored, so every request brings its whole input."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Understand a request."""
        if body.get("previous_response_id"):
            what = f"Previous response with id {body['previous_response_id']!r} not found: nothing is stored"
            raise InvalidRequestError(what, param="previous_response_id")
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else None
        messages: list[Message] = []
        if instructions := reading.text(body.get("instructions"), "instructions"):
            messages.append({"role": "system", "content": instructions})
        messages += _messages(items or reading.objects(body, "input", is_needed=True))
        tools = [_tool(tool) for tool in reading.objects(body, "tools") if tool.get("type") in {"function", "custom"}]
        choice = openai_choice(body.get("tool_choice"))
        schema = answer_schema(reading.member(body, "text", "format"), "text.format")
        return ChatRequest(
            messages=messages,
            tools=[] if choice[0] == "none" else tools,
            demand=demand_of(choice, tools, schema, "text.format"),
            is_single_call=not reading.flag(body, "parallel_tool_calls", default=True),
            max_tokens=reading.integer(body, "max_output_tokens"),
            temperature=reading.number(body, "temperature", maximum=2),
            top_p=reading.nucleus(body),
            stream=bool(body.get("stream")),
            body=body,
        )

    def write(self, reply: Reply, request: ChatRequest) -> dict[str, Any]:
        """An answer as one object."""
        status = "incomplete" if reply.is_cut else "completed"
        ending = {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if reply.is_cut else None,
            "output": _items(reply, request, status),
            "usage": _usage(reply),
        }
        return _frame(reply, request) | ending

    def events(self, reply: Reply, request: ChatRequest) -> Iterator[bytes]:
        """An answer as events."""
        numbers = count()

        def told(kind: str, /, **fields: Any) -> bytes:
            return event({"type": kind, "sequence_number": next(numbers)} | fields, kind)

        opening = _frame(reply, request) | {"status": "in_progress", "output": [], "usage": None}
        yield told("response.created", response=opening)
        yield told("response.in_progress", response=opening)
        whole = self.write(reply, request)
        for index, item in enumerate(whole["output"]):
            yield told("response.output_item.added", output_index=index, item=_empty(item))
            place = {"item_id": item["id"], "output_index": index}
            for kind, fields in _content_events(item):
                yield told(kind, **place, **fields)
            yield told("response.output_item.done", output_index=index, item=item)
        yield told(f"response.{whole['status']}", response=whole)

    def error_event(self, error: RequestError) -> bytes:
        """An error once a stream has begun."""
        told = {"code": error.code or "server_error", "message": str(error)}
        failed = {"object": "response", "status": "failed", "error": told, "output": []}
        return event({"type": "response.failed", "sequence_number": 0, "response": failed}, "response.failed")


def _messages(items: list[dict[str, Any]]) -> list[Message]:
    """Items as messages; what the assistant thought, said and called without a break is one turn."""
    messages: list[Message] = []
    own: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type", "message")
        if kind in _OF_THE_ASSISTANT or (kind == "message" and item.get("role") == "assistant"):
            own.append(item)
            continue
        messages += _turn(own)
        own = []
        messages.append(_message(item, kind))
    return messages + _turn(own)


def _message(item: Mapping[str, Any], kind: str) -> Message:
    if kind in _ANSWERS:
        output = reading.text(item.get("output"), "input")
        return {"role": "tool", "tool_call_id": str(item.get("call_id")), "content": output}
    role = item.get("role")
    if kind != "message" or role not in {"user", "system", "developer"}:
        raise InvalidRequestError(f"input: an item of type {kind!r} and role {role!r} cannot be read", param="input")
    content = reading.text(item.get("content"), "input")
    return {"role": "user" if role == "user" else "system", "content": content}


def _turn(items: list[dict[str, Any]]) -> list[Message]:
    """The assistant's turn that some items make up, if there are any."""
    if not items:
        return []
    said = [reading.text(item.get("content"), "input") for item in items if item.get("type", "message") == "message"]
    thought = [reading.text(item.get("content"), "input") for item in items if item.get("type") == "reasoning"]
    calls = []
    for item in items:
        if item.get("type") == "function_call":
            calls.append((str(item.get("call_id")), str(item.get("name")), item.get("arguments")))
        elif item.get("type") == "custom_tool_call":
            calls.append((str(item.get("call_id")), str(item.get("name")), {"input": item.get("input")}))
    return [reading.assistant("\n".join(filter(None, said)), calls, "\n".join(filter(None, thought)))]


def _tool(tool: Mapping[str, Any]) -> ToolSchema:
    if tool["type"] == "custom":
        return reading.tool_schema({**tool, "parameters": _FREE_TEXT}, "parameters")
    return reading.tool_schema(tool, "parameters")


def _frame(reply: Reply, request: ChatRequest) -> dict[str, Any]:
    body = request.body
    return {
        "id": f"resp_{reply.reply_id}",
        "object": "response",
        "created_at": reply.created,
        "model": body.get("model", ""),
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": not request.is_single_call,
        "previous_response_id": None,
        "store": False,
        "temperature": body.get("temperature"),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p"),
    }


def _items(reply: Reply, request: ChatRequest, status: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        content = [{"type": "reasoning_text", "text": reply.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{reply.reply_id}", "summary": [], "content": content})
    if reply.content or not reply.calls:
        part = {"type": "output_text", "text": reply.content, "annotations": []}
        items.append(_item(f"msg_{reply.reply_id}", "message", status) | {"role": "assistant", "content": [part]})
    custom = {tool.get("name") for tool in request.body.get("tools") or [] if tool.get("type") == "custom"}
    return items + [_called(call, is_custom=call.name in custom, status=status) for call in reply.calls]


def _called(call: ReplyCall, *, is_custom: bool, status: str) -> dict[str, Any]:
    named = {"call_id": call.call_id, "name": call.name}
    if is_custom:
        written = json.loads(call.arguments).get("input", "")
        return _item(f"ctc_{call.call_id}", "custom_tool_call", status) | named | {"input": str(written)}
    return _item(f"fc_{call.call_id}", "function_call", status) | named | {"arguments": call.arguments}


def _item(item_id: str, kind: str, status: str) -> dict[str, Any]:
    return {"type": kind, "id": item_id, "status": status}


def _empty(item: dict[str, Any]) -> dict[str, Any]:
    """An item before its content."""
    unfilled: dict[str, dict[str, Any]] = {
        "reasoning": {"content": []},
        "message": {"content": []},
        "function_call": {"arguments": ""},
        "custom_tool_call": {"input": ""},
    }
    started = {"status": "in_progress"} if "status" in item else {}
    return item | unfilled[item["type"]] | started


def _content_events(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and fields of the events that fill an item."""
    match item["type"]:
        case "function_call":
            yield "response.function_call_arguments.delta", {"delta": item["arguments"]}
            yield "response.function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"]}
        case "custom_tool_call":
            yield "response.custom_tool_call_input.delta", {"delta": item["input"]}
            yield "response.custom_tool_call_input.done", {"input": item["input"]}
        case "reasoning":
            said = {"content_index": 0}
            yield "response.reasoning_text.delta", said | {"delta": item["content"][0]["text"]}
            yield "response.reasoning_text.done", said | {"text": item["content"][0]["text"]}
        case _:
            (part,) = item["content"]
            place = {"content_index": 0}
            yield "response.content_part.added", place | {"part": part | {"text": ""}}
            yield "response.output_text.delta", place | {"delta": part["text"], "logprobs": []}
            yield "response.output_text.done", place | {"text": part["text"], "logprobs": []}
            yield "response.content_part.done", place | {"part": part}


def _usage(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
