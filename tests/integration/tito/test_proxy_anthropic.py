"""Anthropic's own client talks to the proxy as it does to Anthropic."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from seatrial_api.errors import TransientError
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.tito.proxy.server import Proxy
from tests.agent_sessions import TOOL, Agent, agent_session, parents
from tests.chat_models import ChatModel
from tests.scripted_engine import Said

CALL = 'I look.\n<tool_call>\n{"name": "lookup", "arguments": {"row": "lamp"}}\n</tool_call>'
ASKED: list[Any] = [{"role": "user", "content": "What does the lamp cost?"}]
FUNCTION: dict[str, Any] = TOOL["function"]  # type: ignore[assignment]  # plain
TOOLS: list[Any] = [
    {"name": "lookup", "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]},
    {"type": "web_search_20250305", "name": "web_search"},
]


@asynccontextmanager
async def client_of(proxy: Proxy, agent: Agent, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    proxy.open("key-1", agent.session)
    async with anthropic.AsyncAnthropic(base_url=proxy.url, api_key="key-1", **options) as client:
        yield client


async def test_messages_with_tools_and_marks_that_move(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [f"<think>\nHm.\n</think>\n\n{CALL}", "7"])
    mark = {"cache_control": {"type": "ephemeral"}}
    system: list[Any] = [{"type": "text", "text": "You are an agent."}]
    async with client_of(proxy, agent) as client:
        first = await client.messages.create(
            model="any", max_tokens=100, system=[system[0] | mark], messages=ASKED, tools=TOOLS
        )
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
        assert first.stop_reason == "tool_use"
        call = first.content[2]
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("lookup", {"row": "lamp"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "no such row", "is_error": True} | mark
        question = {"role": "user", "content": [{"type": "text", "text": ASKED[0]["content"]}]}
        said: list[Any] = [
            question,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        second = await client.messages.create(model="any", max_tokens=100, system=system, messages=said, tools=TOOLS)
    assert second.content[0].type == "text"
    assert (second.content[0].text, second.stop_reason) == ("7", "end_turn")
    assert second.usage.input_tokens == len(agent.engine.requests[1].token_ids)
    assert parents(agent.session) == [None]
    assert agent.session.turns()[0].tool_calls[0].is_error


async def test_a_streamed_message_adds_up_to_the_same(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [Said(f"<think>\nHm.\n</think>\n\n{CALL}", takes_seconds=0.2)])
    async with (
        client_of(proxy, agent) as client,
        client.messages.stream(model="any", max_tokens=100, messages=ASKED, tools=TOOLS) as stream,
    ):
        whole = await stream.get_final_message()
    thought, said, call = whole.content
    assert thought.type == "thinking"
    assert thought.thinking == "Hm."
    assert said.type == "text"
    assert said.text == "I look."
    assert call.type == "tool_use"
    assert call.input == {"row": "lamp"}
    assert whole.usage.output_tokens == len(agent.engine.made[0])


async def test_a_turn_sent_back_in_two_messages_is_one(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [CALL, "7"])
    async with client_of(proxy, agent) as client:
        first = await client.messages.create(model="any", max_tokens=100, messages=ASKED, tools=TOOLS)
        parts = [{"role": "assistant", "content": [block]} for block in first.content]
        call = first.content[-1]
        assert call.type == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "7"}]}
        said: list[Any] = [*ASKED, *parts, {"role": "user", "content": [result]}]
        await client.messages.create(model="any", max_tokens=100, messages=said, tools=TOOLS)
    assert parents(agent.session) == [None]


async def test_a_stop_sequence_is_named_and_left_out(proxy: Proxy, qwen3: ChatModel) -> None:
    async with client_of(proxy, Agent(qwen3, ["It costs 7. END of it"])) as client:
        reply = await client.messages.create(model="any", max_tokens=100, messages=ASKED, stop_sequences=["END"])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "END")
    assert reply.content[0].type == "text"
    assert reply.content[0].text == "It costs 7."


async def test_a_turn_that_was_cut_says_so(proxy: Proxy, qwen3: ChatModel) -> None:
    async with client_of(proxy, Agent(qwen3, ["It costs 7 and not 8."])) as client:
        reply = await client.messages.create(model="any", max_tokens=3, messages=ASKED)
    assert (reply.stop_reason, reply.usage.output_tokens) == ("max_tokens", 3)


async def test_tokens_are_counted_without_asking_an_engine(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["7"])
    async with client_of(proxy, agent) as client:
        counted = await client.messages.count_tokens(model="any", messages=ASKED, tools=TOOLS)
        reply = await client.messages.create(model="any", max_tokens=100, messages=ASKED, tools=TOOLS)
    assert counted.input_tokens == reply.usage.input_tokens


async def test_errors_are_told_as_anthropic_tells_them(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [], context_length=200)
    async with client_of(proxy, agent, max_retries=0) as client:
        create = client.messages.create
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 200 maximum"):
            await create(model="any", max_tokens=10, messages=[{"role": "user", "content": "word " * 500}])
        with pytest.raises(anthropic.BadRequestError, match="must not be empty"):
            await create(model="any", max_tokens=10, messages=[])
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="another").messages.create(model="any", max_tokens=10, messages=ASKED)


async def test_engines_that_are_down_are_an_overload(proxy: Proxy, qwen3: ChatModel) -> None:
    class Down:
        async def generate(self, request: GenerationRequest) -> Generation:
            raise TransientError(f"no engine for {len(request.token_ids)} tokens")

    agent = Agent(qwen3, [])
    agent.session = agent_session(qwen3, Down())
    async with client_of(proxy, agent, max_retries=0) as client:
        with pytest.raises(anthropic.APIStatusError, match="no engine") as error:
            await client.messages.create(model="any", max_tokens=10, messages=ASKED)
    assert error.value.status_code == 529
    assert json.loads(error.value.response.text)["error"]["type"] == "overloaded_error"
