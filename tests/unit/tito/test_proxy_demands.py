"""What clients demand of the form of an answer is enforced while it is sampled, or refused; never passed over."""

import json
from typing import Any, override

import pytest
from xgrammar import Grammar
from xgrammar.testing import _is_grammar_accept_string as accepts

from seatrial_rollout.engine.errors import RequestRefusedError
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.engine.wire import vllm_body
from seatrial_rollout.tito.parsers import TurnParser
from seatrial_rollout.tito.proxy.anthropic_messages import AnthropicMessages
from seatrial_rollout.tito.proxy.demands import Demand
from seatrial_rollout.tito.proxy.dialect import Dialect
from seatrial_rollout.tito.proxy.errors import InvalidRequestError
from seatrial_rollout.tito.proxy.exchange import ChatRequest
from seatrial_rollout.tito.proxy.grammar import structural_tag
from seatrial_rollout.tito.proxy.openai_chat import OpenAIChat
from seatrial_rollout.tito.proxy.openai_responses import OpenAIResponses
from tests.agent_sessions import TOOL, Agent, agent_session, user
from tests.chat_models import ChatModel
from tests.scripted_engine import ScriptedEngine

SCHEMA = {"type": "object", "properties": {"price": {"type": "integer"}}, "required": ["price"]}
CALL = Demand("tool_choice", ("lookup",))
ANSWER = Demand("response_format", schema=SCHEMA)
FUNCTION = TOOL["function"]
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "lookup", "arguments": {"row": "lamp"}}\n</tool_call>',
    "llama3_json": '{"name": "lookup", "parameters": {"row": "lamp"}}',
    "qwen3_coder": "<tool_call>\n<function=lookup>\n<parameter=row>\nlamp\n</parameter>\n</function>\n</tool_call>",
}

type Object = dict[str, Any]


def parser(call_format: str, *, thinks: bool = False, opens: bool = False) -> TurnParser:
    return TurnParser(lambda _, __: pytest.fail("nothing is parsed here"), thinks, opens, call_format)


def grammar(demand: Demand, reader: TurnParser, tools: list[Any] | None = None) -> Grammar:
    return Grammar.from_structural_tag(structural_tag(demand, [TOOL] if tools is None else tools, reader))


@pytest.mark.parametrize("call_format", WRITTEN)
def test_a_call_that_has_to_be_made_is_written_as_the_family_writes_it(call_format: str) -> None:
    required = grammar(CALL, parser(call_format))
    assert accepts(required, WRITTEN[call_format])
    assert not accepts(required, "It costs 7.")
    assert not accepts(required, WRITTEN[call_format].replace("lookup", "delete"))
    assert not accepts(required, WRITTEN[call_format].replace("row", "column"))


def test_a_tool_that_is_named_is_called_once_and_of_any_number_of_required_calls_all_may_be_made() -> None:
    twice = "\n".join([WRITTEN["hermes"]] * 2)
    assert accepts(grammar(CALL, parser("hermes")), twice)
    assert not accepts(grammar(Demand("tool_choice", ("lookup",), is_single=True), parser("hermes")), twice)


@pytest.mark.parametrize(("opens", "before"), [(False, "<think>Hm.</think>\n\n"), (False, ""), (True, "Hm.</think>\n")])
def test_a_model_that_reasons_does_so_before_it_answers_in_the_form(opens: bool, before: str) -> None:
    answer = grammar(ANSWER, parser("hermes", thinks=True, opens=opens), [])
    assert accepts(answer, f'{before}{{"price": 7}}')
    assert not accepts(answer, f"{before}It costs 7.")


def test_with_tools_an_answer_in_a_form_may_be_a_call_instead() -> None:
    either = grammar(ANSWER, parser("hermes"))
    assert accepts(either, '{"price": 7}')
    assert accepts(either, WRITTEN["hermes"])
    assert not accepts(either, '{"price": "seven"}')


def test_calls_whose_grammar_nobody_knows_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"tool_choice cannot be enforced: .* glm4"):
        structural_tag(CALL, [TOOL], parser("glm4"))


CHAT = {"messages": [user("?")], "tools": [TOOL]}
RESPONSES = {"input": "?", "tools": [{"type": "function", **FUNCTION}]}
SCHEMA_TOOL = {"name": "lookup", "input_schema": FUNCTION["parameters"]}
MESSAGES = {"messages": [user("?")], "tools": [SCHEMA_TOOL]}
NAMED = Demand("tool_choice", ("lookup",), is_single=True)
OF_CHAT = {"type": "json_schema", "json_schema": {"name": "price", "schema": SCHEMA}}
OF_OTHERS = {"type": "json_schema", "name": "price", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("dialect", "body", "demand"),
    [
        (OpenAIChat(), CHAT | {"tool_choice": "auto", "response_format": {"type": "text"}}, None),
        (OpenAIChat(), CHAT | {"tool_choice": "required"}, CALL),
        (OpenAIChat(), CHAT | {"tool_choice": {"type": "function", "function": {"name": "lookup"}}}, NAMED),
        (OpenAIChat(), CHAT | {"response_format": OF_CHAT}, ANSWER),
        (
            OpenAIChat(),
            CHAT | {"response_format": {"type": "json_object"}},
            Demand("response_format", schema={"type": "object"}),
        ),
        (OpenAIResponses(), RESPONSES | {"tool_choice": "required"}, CALL),
        (OpenAIResponses(), RESPONSES | {"tool_choice": {"type": "function", "name": "lookup"}}, NAMED),
        (OpenAIResponses(), RESPONSES | {"text": {"format": OF_OTHERS}}, Demand("text.format", schema=SCHEMA)),
        (AnthropicMessages(), MESSAGES | {"tool_choice": {"type": "auto"}}, None),
        (AnthropicMessages(), MESSAGES | {"tool_choice": {"type": "any"}}, CALL),
        (AnthropicMessages(), MESSAGES | {"tool_choice": {"type": "tool", "name": "lookup"}}, NAMED),
        (
            AnthropicMessages(),
            MESSAGES | {"output_config": {"format": OF_OTHERS}},
            Demand("output_config.format", schema=SCHEMA),
        ),
    ],
)
def test_each_api_demands_in_words_of_its_own(dialect: Dialect, body: Object, demand: Demand | None) -> None:
    assert dialect.read(body).demand == demand


@pytest.mark.parametrize(
    ("dialect", "body", "only_one"),
    [
        (OpenAIChat(), CHAT, {"parallel_tool_calls": False}),
        (OpenAIResponses(), RESPONSES, {"parallel_tool_calls": False}),
        (AnthropicMessages(), MESSAGES, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    ],
)
def test_each_api_asks_for_a_single_call_in_words_of_its_own(dialect: Dialect, body: Object, only_one: Object) -> None:
    assert (dialect.read(body).is_single_call, dialect.read(body | only_one).is_single_call) == (False, True)


@pytest.mark.parametrize(
    ("dialect", "body", "param"),
    [
        (OpenAIChat(), CHAT | {"tool_choice": "lookup"}, "tool_choice"),
        (OpenAIChat(), CHAT | {"tool_choice": {"type": "function", "function": {"name": "delete"}}}, "tool_choice"),
        (OpenAIChat(), CHAT | {"tool_choice": "required", "tools": []}, "tool_choice"),
        (OpenAIChat(), CHAT | {"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (OpenAIChat(), CHAT | {"response_format": {"type": "json_schema"}}, "response_format"),
        (OpenAIResponses(), RESPONSES | {"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        (OpenAIResponses(), RESPONSES | {"text": {"format": {"type": "grammar"}}}, "text.format"),
        (OpenAIResponses(), RESPONSES | {"text": "json"}, "text"),
        (OpenAIChat(), CHAT | {"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (AnthropicMessages(), MESSAGES | {"tool_choice": "any"}, "tool_choice"),
        (AnthropicMessages(), MESSAGES | {"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_field(dialect: Dialect, body: Object, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        dialect.read(body)
    assert refused.value.param == param
    assert dialect.status(refused.value) == 400


async def test_the_engine_is_told_and_equal_requests_with_other_demands_are_others(qwen3: ChatModel) -> None:
    agent = Agent(qwen3, [])
    agent.engine.follow([agent.call("lamp"), "7"])
    await agent.ask([user("?")], demand=CALL)
    await agent.ask([user("?")], is_got=False)
    called, free = agent.engine.requests
    sampling = json.loads(vllm_body(called, ""))["sampling_params"]
    assert json.loads(sampling["structured_outputs"]["structural_tag"])["type"] == "structural_tag"
    assert "structured_outputs" not in json.loads(vllm_body(free, ""))["sampling_params"]


class RefusingEngine(ScriptedEngine):
    """An engine whose grammar compiler does not take the schema."""

    @override
    async def generate(self, request: GenerationRequest) -> Generation:
        raise RequestRefusedError(engine_id="engine-1", status=400, detail="the schema has an unsupported feature")


async def test_a_schema_that_the_engine_refuses_is_the_clients_fault(qwen3: ChatModel) -> None:
    session = agent_session(qwen3, RefusingEngine(qwen3.template, []))
    exchange = session.ask(ChatRequest([user("?")], demand=ANSWER))
    await session.answer(exchange)
    with pytest.raises(InvalidRequestError, match=r"response_format: .* unsupported feature"):
        _ = exchange.reply
