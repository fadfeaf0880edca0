"""OpenAI's own client talks to the proxy as it does to OpenAI."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from seatrial_api.errors import TransientError
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.tito.proxy.server import Proxy
from tests.agent_sessions import TOOL, Agent, agent_session, parents
from tests.chat_models import ChatModel
from tests.leftovers import eventually
from tests.scripted_engine import Said, ScriptedEngine

THINKING_CALL = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "lookup", "arguments": {"row": "lamp"}}\n</tool_call>'
ASKED: list[Any] = [{"role": "user", "content": "What does the lamp cost?"}]
IMAGE: Any = {"type": "image_url", "image_url": {"url": "data:"}}
FUNCTION = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]  # as the responses API has it


@asynccontextmanager
async def client_of(
    proxy: Proxy, agent: Agent, key: str = "key-1", **options: Any
) -> AsyncIterator[openai.AsyncOpenAI]:
    proxy.open(key, agent.session)
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=key, **options) as client:
        yield client


async def test_chat_with_tools_and_reasoning(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [THINKING_CALL, "7"])
    async with client_of(proxy, agent) as client:
        first = await client.chat.completions.create(model="any", messages=ASKED, tools=[TOOL])  # type: ignore[list-item]  # plain
        choice = first.choices[0]
        (call,) = choice.message.tool_calls or []
        assert choice.finish_reason == "tool_calls"
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("lookup", {"row": "lamp"})
        assert choice.message.model_extra == {"reasoning_content": "Hm."}
        answer = {"role": "tool", "tool_call_id": call.id, "content": "7"}
        said = [*ASKED, choice.message.to_dict(), answer]
        second = await client.chat.completions.create(model="any", messages=said, tools=[TOOL])  # type: ignore[list-item]  # plain
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("7", "stop")
    assert second.usage is not None
    assert second.usage.prompt_tokens == len(agent.engine.requests[1].token_ids)
    assert parents(agent.session) == [None]


async def test_a_streamed_chat_adds_up_to_the_same(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [THINKING_CALL])
    async with (
        client_of(proxy, agent) as client,
        client.chat.completions.stream(
            model="any",
            messages=ASKED,
            tools=[TOOL],  # type: ignore[list-item]  # plain
            stream_options={"include_usage": True},
        ) as stream,
    ):
        whole = await stream.get_final_completion()
    choice = whole.choices[0]
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("lookup", {"row": "lamp"})
    assert choice.finish_reason == "tool_calls"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(agent.engine.made[0])


async def test_a_stream_that_waits_is_kept_alive(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [Said("7", takes_seconds=0.5)])
    proxy.open("key-1", agent.session)
    body = {"model": "any", "messages": ASKED, "stream": True}
    headers = {"Authorization": "Bearer key-1"}
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers)
    assert answer.text.startswith(": keep-alive\n\n")
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_client_that_gave_up_gets_its_answer_when_it_asks_again(proxy: Proxy, qwen3: ChatModel) -> None:
    engine = SlowEngine(qwen3)
    agent = Agent(qwen3, [])
    agent.session = agent_session(qwen3, engine)
    async with client_of(proxy, agent, timeout=0.3, max_retries=0) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="any", messages=ASKED)
        patient = client.with_options(timeout=60)
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(patient.chat.completions.create(model="any", messages=ASKED))
            await eventually(lambda: agent.session.num_requests == 2, what="the second request to come")
            engine.release.set()
    assert asking.result().choices[0].message.content == "7"
    assert agent.session.num_turns == 1


async def test_the_clients_own_retry_succeeds_once_an_engine_is_back(proxy: Proxy, qwen3: ChatModel) -> None:
    engine = SlowEngine(qwen3, num_failures=1)
    engine.release.set()
    agent = Agent(qwen3, [])
    agent.session = agent_session(qwen3, engine)
    async with client_of(proxy, agent, max_retries=2) as client:
        reply = await client.chat.completions.create(model="any", messages=ASKED)
    assert reply.choices[0].message.content == "7"


async def test_a_url_of_its_own_names_a_trial_too(proxy: Proxy, qwen3: ChatModel) -> None:
    proxy.open("key-1", Agent(qwen3, ["7"]).session)
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/trials/key-1/v1", api_key="unused") as client:
        assert [model.id async for model in client.models.list()] == ["policy"]
        reply = await client.chat.completions.create(model="any", messages=ASKED)
    assert reply.choices[0].message.content == "7"


async def test_sessions_know_nothing_of_each_other(proxy: Proxy, qwen3: ChatModel) -> None:
    one, two = Agent(qwen3, ["1"]), Agent(qwen3, ["2"])
    async with client_of(proxy, one, "a") as first, client_of(proxy, two, "b") as second:
        said = [await each.chat.completions.create(model="any", messages=ASKED) for each in (first, second)]
    assert [reply.choices[0].message.content for reply in said] == ["1", "2"]
    assert [agent.session.num_turns for agent in (one, two)] == [1, 1]


async def test_errors_are_told_as_openai_tells_them(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, ["7"], context_length=200, max_turns=1)
    async with client_of(proxy, agent, max_retries=0) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="maximum context length is 200 tokens") as overflow:
            await create(model="any", messages=[{"role": "user", "content": "word " * 500}])
        assert overflow.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="temperature") as invalid:
            await create(model="any", messages=ASKED, temperature=3)
        assert invalid.value.param == "temperature"
        with pytest.raises(openai.BadRequestError, match="one answer"):
            await create(model="any", messages=ASKED, n=2)
        with pytest.raises(openai.BadRequestError, match="image_url"):
            await create(model="any", messages=[{"role": "user", "content": [IMAGE]}])
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="another").chat.completions.create(model="any", messages=ASKED)
        await create(model="any", messages=ASKED)
        with pytest.raises(openai.PermissionDeniedError):
            await create(model="any", messages=[{"role": "user", "content": "More?"}])


async def test_an_engine_that_is_lost_while_a_stream_waits_is_told_in_it(proxy: Proxy, qwen3: ChatModel) -> None:
    engine = SlowEngine(qwen3, num_failures=1)
    agent = Agent(qwen3, [])
    agent.session = agent_session(qwen3, engine)
    async with client_of(proxy, agent, max_retries=0) as client:
        stream = await client.chat.completions.create(model="any", messages=ASKED, stream=True)
        engine.release.set()
        with pytest.raises(openai.APIError, match="engines are down"):
            async for _ in stream:
                pass


@pytest.mark.parametrize(
    "body", ["{", "[]", "{}", '{"messages": []}', '{"messages": [3]}', '{"messages": [{"role": 1}]}']
)
async def test_what_is_no_request_is_refused(proxy: Proxy, qwen3: ChatModel, body: str) -> None:
    proxy.open("key-1", Agent(qwen3, []).session)
    headers = {"Authorization": "Bearer key-1"}
    async with httpx.AsyncClient(headers=headers) as client:
        answer = await client.post(f"{proxy.url}/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_responses_with_tools_and_reasoning(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [THINKING_CALL, "7"])
    async with client_of(proxy, agent) as client:
        first = await client.responses.create(model="any", instructions="Be brief.", input=ASKED, tools=[FUNCTION])  # type: ignore[list-item]  # plain
        reasoning, call = first.output
        assert reasoning.type == "reasoning"
        assert call.type == "function_call"
        answer = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
        said = [*ASKED, *(item.to_dict() for item in first.output), answer]
        second = await client.responses.create(model="any", instructions="Be brief.", input=said, tools=[FUNCTION])  # type: ignore[list-item]  # plain
    assert (second.output_text, second.status) == ("7", "completed")
    assert parents(agent.session) == [None]


async def test_streamed_responses_add_up_to_the_same(proxy: Proxy, qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [THINKING_CALL, "It costs 7."])
    async with client_of(proxy, agent) as client:
        wholes = []
        for words in ("Look.", "Say."):
            async with client.responses.stream(model="any", input=words, tools=[FUNCTION]) as stream:  # type: ignore[list-item]  # plain
                wholes.append(await stream.get_final_response())
    assert [item.type for item in wholes[0].output] == ["reasoning", "function_call"]
    assert wholes[1].output_text == "It costs 7."


async def test_a_tool_that_takes_free_text_gets_it(proxy: Proxy, qwen3: ChatModel) -> None:
    patch = "<tool_call>\n" + json.dumps({"name": "patch", "arguments": {"input": "*** Begin"}}) + "\n</tool_call>"
    agent = Agent(qwen3, [patch, "Done."])
    tools: list[Any] = [{"type": "custom", "name": "patch", "description": "Patches."}, {"type": "web_search"}]
    async with client_of(proxy, agent) as client:
        first = await client.responses.create(model="any", input=ASKED, tools=tools)
        (call,) = first.output
        assert call.type == "custom_tool_call"
        assert call.input == "*** Begin"
        answer = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ok"}
        said: list[Any] = [*ASKED, call.to_dict(), answer]
        await client.responses.create(model="any", input=said, tools=tools)
    assert parents(agent.session) == [None]


async def test_a_turn_that_was_cut_is_an_incomplete_response(proxy: Proxy, qwen3: ChatModel) -> None:
    async with client_of(proxy, Agent(qwen3, ["It costs 7 and not 8."])) as client:
        reply = await client.responses.create(model="any", input="What?", max_output_tokens=3)
    assert reply.status == "incomplete"
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"


async def test_a_response_that_was_not_stored_is_not_found(proxy: Proxy, qwen3: ChatModel) -> None:
    async with client_of(proxy, Agent(qwen3, [])) as client:
        with pytest.raises(openai.BadRequestError, match="not found"):
            await client.responses.create(model="any", input="What?", previous_response_id="resp_1")


class SlowEngine:
    """Says 7 once it is released, after so many failures."""

    def __init__(self, model: ChatModel, *, num_failures: int = 0) -> None:
        self._engine = ScriptedEngine(model.template, iter(lambda: "7", ""))
        self._num_failures = num_failures
        self.release = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Wait, then fail or say it."""
        await self.release.wait()
        self._num_failures -= 1
        if self._num_failures >= 0:
            raise TransientError("all engines are down")
        return await self._engine.generate(request)
