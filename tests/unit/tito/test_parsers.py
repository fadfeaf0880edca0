"""Reading turns: reasoning, content, tool calls and malformed ones."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.errors import InvalidInputError
from seatrial_rollout.tito.call_formats import PARSERS
from seatrial_rollout.tito.parsed import ParsedTurn
from seatrial_rollout.tito.parsers import TurnParser
from tests.chat_models import FAMILIES, ChatModel


def parser(name: str, *, has_reasoning: bool = True, opens_reasoning: bool = False) -> TurnParser:
    return TurnParser(PARSERS[name], has_reasoning, opens_reasoning)


def called(turn: ParsedTurn) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in turn.calls]


FORMATS = {"qwen3": "hermes", "hermes": "hermes", "llama3": "llama3_json", "glm4": "glm4"}

names = st.from_regex(r"[a-z][a-z0-9_]{0,15}", fullmatch=True)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
calls = st.lists(st.tuples(names, st.dictionaries(st.text(), values, max_size=3)), min_size=1, max_size=3)


@pytest.mark.parametrize("family", sorted(FORMATS))
@given(calls=calls)
def test_every_call_that_a_model_writes_well_is_read(family: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    text = FAMILIES[family].text_of_calls(calls)
    if family == "glm4" and "<|assistant|>" in json.dumps(calls):
        return  # GLM-4 has no way to say that
    turn = parser(FORMATS[family]).parse(text)
    assert called(turn) == calls
    assert turn.faults == []
    assert [json.loads(call.arguments_text) for call in turn.calls] == [arguments for _, arguments in calls]


fragments = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "a", "arguments": {}}', '{"name": "a"'),
        *("<function=a>", "</function>", "<parameter=b>", "</parameter>", "a\n{}", "<|assistant|>", "<|python_tag|>"),
        *('{"name": "a", "parameters": {}}', ";", "\n", "said", "<arg_key>", "</arg_key>", "<arg_value>", "\\ud800"),
    ]
)


@pytest.mark.parametrize("name", sorted(PARSERS))
@given(text=st.lists(fragments | st.text(max_size=5), max_size=12).map("".join))
def test_nothing_that_was_meant_as_a_call_is_dropped(name: str, text: str) -> None:
    turn = parser(name, has_reasoning=False).parse(text)
    if name != "llama3_json" and ("<tool_call>" in text or "</tool_call>" in text):
        assert turn.calls or turn.faults
    assert all(fault.problem for fault in turn.faults)


def test_calls_stand_beside_content() -> None:
    text = 'I look.\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\nDone.'
    turn = parser("hermes").parse(text)
    assert turn.content == "I look.\nDone."
    assert called(turn) == [("a", {"x": 1})]


def test_arguments_are_kept_as_they_were_written() -> None:
    text = '<tool_call>{"name":"a","arguments":{ "x" :1e1 ,"y":"\\u00fc"}}</tool_call>'
    (call,) = parser("hermes").parse(text).calls
    assert call.arguments_text == '{ "x" :1e1 ,"y":"\\u00fc"}'


def test_a_closing_tag_inside_of_a_string_closes_nothing() -> None:
    text = '<tool_call>\n{"name": "a", "arguments": {"x": "</tool_call>"}}\n</tool_call>'
    assert called(parser("hermes").parse(text)) == [("a", {"x": "</tool_call>"})]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("hermes", '<tool_call>{"name": "a", "arguments": {}', "invalid JSON: Expecting ',' delimiter at character 29"),
        ("hermes", '<tool_call>{"name": "a", "arguments": {}}', "not closed with </tool_call>"),
        ("hermes", '<tool_call>{"name": "a", "arguments": {}}!</tool_call>', "not closed with </tool_call>"),
        ("hermes", '{"name": "a", "arguments": {}}</tool_call>', "</tool_call> without <tool_call>"),
        (
            "hermes",
            '<tool_call>{"name": "a", "args": {}}</tool_call>',
            'needs "arguments" with a JSON object, not',
        ),
        ("hermes", '<tool_call>{"name": "a", "arguments": "{}"}</tool_call>', "with a JSON object, not a string"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', 'needs "name"'),
        ("hermes", "<tool_call>[1]</tool_call>", "has to be a JSON object, not a list"),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "NaN is not JSON"),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": "\\ud800"}}</tool_call>', "surrogate"),
        ("hermes", '<tool_call>{"name": "a", "arguments": ' + "[" * 100_000 + "</tool_call>", "invalid JSON"),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": ' + "1" * 5000 + "}}</tool_call>", "invalid JSON"),
        ("llama3_json", '{"name": "a", "parameters": {}', "invalid JSON"),
        ("llama3_json", '{"name": "a", "arguments": {}}', 'needs "parameters"'),
        ("llama3_json", "<|python_tag|>print(1)", "invalid JSON"),
        ("glm4", 'a\n{"x": 1', "invalid JSON"),
        ("glm4", 'a\n{"x": 1} and so on', "followed by other text"),
        ("glm4", "<tool_call>a\n<arg_key>x</arg_key>\n</tool_call>", "followed by <arg_value>"),
        ("glm4", "<tool_call>a b\n<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>", "the tool's name"),
        ("glm4", "<tool_call>a", "not closed with </tool_call>"),
        ("qwen3_coder", "<tool_call>\nlook it up\n</tool_call>", "<function=NAME>"),
        ("qwen3_coder", "<tool_call><function=a></tool_call>", "never closed with </function>"),
        (
            "qwen3_coder",
            "<tool_call><function=a><parameter=x>1</function></tool_call>",
            "closed with </parameter>",
        ),
    ],
)
def test_a_malformed_call_says_what_is_wrong(name: str, text: str, problem: str) -> None:
    turn = parser(name).parse(text)
    assert turn.calls == []
    assert problem in turn.faults[0].problem
    assert turn.faults[0].text


def test_a_malformed_call_takes_no_other_call_with_it() -> None:
    good = '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
    turn = parser("hermes").parse(f'<tool_call>{{"name": {good}<tool_call>oops</tool_call>{good}')
    assert called(turn) == [("b", {}), ("b", {})]
    assert len(turn.faults) == 2


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<think>\nHm.\n</think>\n\nSeven.", "Seven.", "Hm."),
        ("<think>\n\n</think>\n\nSeven.", "Seven.", ""),
        ("Seven.", "Seven.", ""),
        ("<think>\nHm", "", "Hm"),
        ("Seven.</think>", "Seven.</think>", ""),
        ("", "", ""),
    ],
    ids=["reasoning", "empty reasoning", "no reasoning", "unfinished", "never opened", "nothing"],
)
def test_reasoning_is_told_from_content(text: str, content: str, reasoning: str) -> None:
    turn = parser("hermes").parse(text)
    assert (turn.content, turn.reasoning) == (content, reasoning)


@pytest.mark.parametrize(
    ("text", "content", "reasoning"), [("Hm.\n</think>\nSeven.", "Seven.", "Hm."), ("Hm, seven", "", "Hm, seven")]
)
def test_where_the_prompt_opens_the_reasoning_a_turn_starts_inside_of_it(
    text: str, content: str, reasoning: str
) -> None:
    turn = parser("hermes", opens_reasoning=True).parse(text)
    assert (turn.content, turn.reasoning) == (content, reasoning)


def test_a_call_inside_of_reasoning_is_thought_not_made() -> None:
    call = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
    assert parser("hermes").parse(f"<think>{call}</think>Done.").calls == []
    unfinished = parser("hermes").parse(f"<think>{call}")
    assert "inside <think>" in unfinished.faults[0].problem


def test_a_template_without_reasoning_leaves_the_tag_in_the_content() -> None:
    assert parser("hermes", has_reasoning=False).parse("<think>a</think>b").content == "<think>a</think>b"


@pytest.mark.parametrize(
    "text", ['{"answer": 7}', "It costs 7.", 'Use {"name": "a", "parameters": {}} for that.', "[1, 2]"]
)
def test_an_answer_in_json_is_no_call_of_llama(text: str) -> None:
    assert parser("llama3_json").parse(text) == ParsedTurn(text)


def test_llama_may_tag_its_calls_and_name_their_type() -> None:
    text = '<|python_tag|>{"type": "function", "name": "a", "parameters": {"x": 1}}\n{"name": "b", "parameters": {}}'
    assert called(parser("llama3_json").parse(text)) == [("a", {"x": 1}), ("b", {})]


def test_glm_answers_are_content() -> None:
    assert parser("glm4").parse("\nIt costs 7.\n{so it is}").content == "It costs 7.\n{so it is}"


SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "a",
            "parameters": {"properties": {"row": {"type": "string"}, "count": {"type": "integer"}, "list": {}}},
        },
    }
]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "glm4",
            (
                "<tool_call>a\n<arg_key>row</arg_key>\n<arg_value>12</arg_value>\n<arg_key>count</arg_key>\n"
                "<arg_value>12</arg_value>\n<arg_key>list</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>"
            ),
        ),
        (
            "qwen3_coder",
            (
                "<tool_call>\n<function=a>\n<parameter=row>\n12\n</parameter>\n<parameter=count>\n12\n</parameter>\n"
                "<parameter=list>\n[1, 2]\n</parameter>\n</function>\n</tool_call>"
            ),
        ),
    ],
)
def test_values_written_as_text_get_the_type_that_the_tool_declares(name: str, text: str) -> None:
    turn = parser(name).parse(text, SCHEMAS)
    assert called(turn) == [("a", {"row": "12", "count": 12, "list": [1, 2]})]


def test_a_value_of_several_lines_keeps_them() -> None:
    text = "<tool_call><function=a><parameter=row>\none\n  two\n</parameter></function></tool_call>"
    assert called(parser("qwen3_coder").parse(text, SCHEMAS)) == [("a", {"row": "one\n  two"})]


def test_the_format_is_told_from_the_template(model: ChatModel) -> None:
    found = TurnParser.of(model.template)
    assert found.parse_calls is PARSERS[FORMATS[model.family.name]]
    assert found.has_reasoning == (model.family.name == "qwen3")


def test_a_template_without_a_known_format_will_do_where_there_are_no_tools(qwen3: ChatModel) -> None:
    template = replace(qwen3.template, sources={"default": "{{ messages }}"})
    with pytest.raises(InvalidInputError, match="Auto finds no known format of tool calls"):
        TurnParser.of(template)
    assert TurnParser.of(template, with_tools=False).parse(" <tool_call> ") == ParsedTurn("<tool_call>")


def test_an_unknown_format_is_refused_with_the_known_ones(qwen3: ChatModel) -> None:
    with pytest.raises(InvalidInputError, match=r"toolCallFormat: yaml is none of hermes, llama3_json, .*Auto"):
        TurnParser.of(qwen3.template, "yaml")
