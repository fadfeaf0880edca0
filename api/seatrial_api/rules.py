"""Cross-field rules, each written once: in CEL, for the API server and for `seatrial validate` alike."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from seatrial_api.base import ApiModel
from seatrial_api.cel import compile_expression, evaluate
from seatrial_api.cel_functions import to_string
from seatrial_api.walk import objects

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")

COLLECT = "collect"
"""Validation context under which broken rules do not raise; `violations` finds them all afterwards."""

RULE_ERROR = "rule"
"""Type of the pydantic error that a broken rule raises; its context holds `violations`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition over several fields of one object.

    `self` is the object as the API server stores it: camelCase names, defaults filled in, empty fields absent.
    """

    cel: str
    """The object is valid when this is true; with `oldSelf` in it, the rule is about an update."""
    message: str
    """What is wrong and the way out; `{expression}` stands for the value of that CEL expression."""
    field: str = ""
    """The field to blame, as a path from the object: `.minibatchSize`."""

    @property
    def is_transition(self) -> bool:
        """Whether the rule compares with the object before an update."""
        return "oldSelf" in self.cel

    @property
    def message_expression(self) -> str | None:
        """The message as a CEL expression; none when it holds no value.

        The API server bounds the cost of `format` by the text's length, but that of `+` not at all.
        """
        values = _PLACEHOLDER.findall(self.message)
        if not values:
            return None
        text = _PLACEHOLDER.sub("%s", self.message.replace("%", "%%"))
        return f"{_quote(text)}.format([{', '.join(f'string({value})' for value in values)}])"

    def broken_message(self, value: dict[str, Any], old: dict[str, Any] | None = None) -> str | None:
        """The message if the rule does not hold for `value`; a transition rule holds when there is no `old`.

        Raises:
            CelError: the rule does not fit the value.
        """
        if self.is_transition and old is None:
            return None
        scope = {"self": value, "oldSelf": old}
        if evaluate(compile_expression(self.cel), scope):
            return None
        return _PLACEHOLDER.sub(
            lambda found: to_string(evaluate(compile_expression(found[1]), scope)),
            self.message,
        )


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that does not hold."""

    path: str
    """Path of the field to blame: `.spec.algorithm.minibatchSize`."""
    message: str
    """What is wrong and the way out."""
    rule: Rule
    """The rule."""


class RuledModel(ApiModel):
    """An API object with cross-field rules, which hold for every instance."""

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _rules_hold(self, info: ValidationInfo) -> Self:
        if info.context == COLLECT:
            return self
        broken = list(_own_violations(self, None, ""))
        if broken:
            sentences = "; ".join(violation.message for violation in broken)
            raise PydanticCustomError(RULE_ERROR, "{sentences}", {"sentences": sentences, "violations": broken})
        return self


def violations(model: ApiModel, old: ApiModel | None = None, path: str = "") -> Iterator[Violation]:
    """Every broken rule of `model` and of all objects in it.

    Args:
        model: Validated under the context `COLLECT`.
        old: The object before an update; without it, rules about updates hold.
        path: Where `model` lies.
    """
    for below, item, former in objects(model, old, path):
        if isinstance(item, RuledModel):
            yield from _own_violations(item, former, below)


def _own_violations(model: RuledModel, old: ApiModel | None, path: str) -> Iterator[Violation]:
    if not model.rules:
        return
    value = stored_form(model)
    old_value = None if old is None else stored_form(old)
    for rule in model.rules:
        message = rule.broken_message(value, old_value)
        if message is not None:
            yield Violation(path + rule.field, message, rule)


def stored_form(model: ApiModel) -> dict[str, Any]:
    """`model` as the API server stores it: camelCase names, defaults filled in, empty fields absent."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def exactly_one(kind: str, *fields: str) -> Rule:
    """A rule that one of `fields` is set."""
    return Rule(f"{_count_set(fields)} == 1", _one_of_message(kind, "exactly one", fields))


def at_most_one(kind: str, *fields: str) -> Rule:
    """A rule that one of `fields`, or none, is set."""
    return Rule(f"{_count_set(fields)} <= 1", _one_of_message(kind, "at most one", fields))


def unique(field: str, key: str) -> Rule:
    """A rule that `key` tells the items of the list `field` apart."""
    return Rule(
        f"self.{field}.all(a, self.{field}.exists_one(b, b.{key} == a.{key}))",
        f"{field} must differ in their {key}; rename or remove the doubled one",
        f".{field}",
    )


def immutable(*fields: str) -> tuple[Rule, ...]:
    """Rules that `fields` do not change once the object is created."""
    return tuple(
        Rule(
            f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
            f"{field} cannot change after creation; create a new object, or restore the former value",
            f".{field}",
        )
        for field in fields
    )


def _count_set(fields: tuple[str, ...]) -> str:
    flags = ", ".join(f"has(self.{field})" for field in fields)
    return f"[{flags}].filter(isSet, isSet).size()"


def _one_of_message(kind: str, how_many: str, fields: tuple[str, ...]) -> str:
    return f"{kind} needs {how_many} of {', '.join(fields)}; {{{_count_set(fields)}}} are set"
