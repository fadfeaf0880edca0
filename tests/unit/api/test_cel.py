"""Our CEL evaluator against Google's: the same text has the same value."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seatrial_api.cel import CelError, compile_expression, evaluate
from seatrial_api.cel_functions import to_string
from seatrial_api.crd import KINDS, structural_schema
from seatrial_api.rules import Rule, RuledModel
from seatrial_api.walk import model_types
from tests.google_cel import compile_with_google, evaluate_with_google
from tests.manifests import values_of

SCOPE = {
    "self": {
        "count": 7,
        "share": 0.25,
        "flag": True,
        "ratio": "4:2",
        "names": ["a", "b", "a"],
        "items": [{"name": "a", "size": 1}, {"name": "b", "size": 2}],
        "labels": {"x/y": "1"},
    },
    "oldSelf": {"count": 6},
}

EXPRESSIONS = [
    "self.count + 2 * 3 - 4",
    "(self.count + 2) * 3",
    "-self.count / 2",
    "-self.count % 3",
    "self.share * 2.0 / 4.0",
    "self.count == 7.0 && self.share < 1",
    "self.flag == true || self.missing == 1",
    "!self.flag && self.missing == 1",
    "has(self.missing) ? self.missing : 'none'",
    "has(self.count) && !has(self.nothing)",
    "self.ratio.split(':').map(part, int(part))",
    "self.ratio.startsWith('4') && self.ratio.endsWith('2') && self.ratio.matches('^[0-9]:[0-9]$')",
    "self.names.all(name, self.names.exists_one(other, other == name))",
    "self.names.exists(name, name == 'b')",
    "self.names.filter(name, name != 'a').size()",
    "size(self.names) + size(self.ratio) + size(self.labels)",
    "self.items.map(item, item.size > 1).indexOf(true)",
    "self.items.map(item, item.name).indexOf('z')",
    "self.labels.all(key, !key.startsWith('ray.io/'))",
    "'x/y' in self.labels && 'a' in self.names && !(3 in [1, 2])",
    "self.items[1].name + self.names[0]",
    "self.items[0] == self.items[0] && self.items[0] != self.items[1]",
    "self == self && self != oldSelf",
    "dyn(self.count) != dyn(self.ratio)",
    "dyn(1) == true || '1' == '1'",
    "type(self.count) == int && type(self.ratio) == string",
    "'a \\' quote' + string(self.count)",
    "[1, 2] + [3]",
    "self.count > 9 ? 'big' : self.count > 5 ? 'middle' : 'small'",
]


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_an_expression_has_the_value_that_google_gives_it(source: str) -> None:
    assert evaluate(compile_expression(source), SCOPE) == evaluate_with_google(source, SCOPE)


@pytest.mark.parametrize(
    "source",
    [
        "self.missing",
        "self.count.deeper",
        "self.count + self.ratio",
        "self.count < self.ratio",
        "self.count && true",
        "!self.count",
        "1 / 0",
        "self.names[9]",
        "int('four')",
        "self.count in 3",
    ],
)
def test_what_google_refuses_to_evaluate_is_refused_here(source: str) -> None:
    with pytest.raises(CelError):
        evaluate(compile_expression(source), SCOPE)
    with pytest.raises((ValueError, RuntimeError)):
        evaluate_with_google(source, SCOPE)


@pytest.mark.parametrize(
    "source", ["", "1 +", "(1", "self.", "a b", "has(1)", "x.all(1, true)", "f(1)", "x.f()", "'a", "§"]
)
def test_what_cannot_be_parsed_is_refused(source: str) -> None:
    with pytest.raises(CelError):
        compile_expression(source)
    with pytest.raises(RuntimeError):
        compile_with_google(source)


@given(st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.booleans()))
@example(1e6)
@example(123456.0)
@example(1e-5)
@example(0.0001)
@example(-0.0)
@example(2.0**-24)
def test_numbers_are_written_as_kubernetes_writes_them(value: float) -> None:
    text = to_string(value)
    if isinstance(value, float):
        mantissa, _, exponent = text.partition("e")
        assert float(text) == value
        assert "." not in mantissa or not mantissa.endswith("0")
        assert bool(exponent) == (value != 0 and not 1e-4 <= abs(value) < 1e6)
    else:
        assert text == evaluate_with_google("string(self)", {"self": value})


RULES = sorted(
    {
        (model.__name__, rule)
        for kind in KINDS
        for model in model_types(kind.model)
        if issubclass(model, RuledModel)
        for rule in model.rules
    },
    key=lambda item: (item[0], item[1].cel),
)


@pytest.mark.parametrize(
    ("model", "rule"), RULES, ids=[f"{model}-{rule.field}-{index}" for index, (model, rule) in enumerate(RULES)]
)
def test_a_rule_and_its_message_are_valid_cel(model: str, rule: Rule) -> None:
    compile_with_google(rule.cel)
    if rule.message_expression is not None:
        compile_with_google(rule.message_expression)


RULED = sorted(
    {model for kind in KINDS for model in model_types(kind.model) if issubclass(model, RuledModel) and model.rules},
    key=lambda model: model.__name__,
)


@pytest.mark.parametrize("model", RULED, ids=lambda model: model.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_rule_gives_google_s_verdict_and_words_on_generated_objects(
    model: type[RuledModel], data: st.DataObject
) -> None:
    schema = structural_schema(model)
    value, old = (_with_defaults(schema, data.draw(values_of(schema))) for _ in range(2))
    scope = {"self": value, "oldSelf": old}
    for rule in model.rules:
        verdict = evaluate(compile_expression(rule.cel), scope)
        assert verdict == evaluate_with_google(rule.cel, scope), rule.cel
        message = rule.broken_message(value, old)
        assert (message is None) == verdict
        if message is not None and rule.message_expression is not None:
            assert message == evaluate_with_google(rule.message_expression, scope)


def _with_defaults(schema: dict, value: object) -> object:  # type: ignore[type-arg]  # a JSON schema
    """Fill in defaults as the API server does."""
    if isinstance(value, list):
        return [_with_defaults(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    defaults = {name: below["default"] for name, below in properties.items() if "default" in below}
    filled = {**defaults, **value}
    return {name: _with_defaults(properties.get(name, {}), item) for name, item in filled.items()}
