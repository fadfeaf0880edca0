"""The part of the Common Expression Language that our rules use, so that they are written once.

The API server evaluates a CRD's rules in CEL; `seatrial validate` evaluates the very same text here. Tests hold this
evaluator against Google's own over generated specs.

Grammar, by rising precedence: `c ? a : b`, `||`, `&&`, comparisons and `in`, `+ -`, `* / %`, `! -`, then `.field`,
`[index]`, calls, and the macros `has all exists exists_one filter map`. Left out: optional values, bytes, timestamps,
message construction, and the rule that `||` and `&&` absorb an error of their left side.

Source: https://github.com/google/cel-spec/blob/master/doc/langdef.md
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, assert_never

from seatrial_api.cel_functions import BINARY, FUNCTIONS, METHODS, TYPES, CelError

__all__ = ["CelError", "Expression", "compile_expression"]

type Scope = Mapping[str, Any]
type Macro = Literal["all", "exists", "exists_one", "filter", "map"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Any


@dataclass(frozen=True, slots=True)
class Name:
    """A variable or a type."""

    name: str


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[a, b]`."""

    items: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Select:
    """`target.field`."""

    target: "Expression"
    field: str


@dataclass(frozen=True, slots=True)
class Has:
    """`has(target.field)`."""

    select: Select


@dataclass(frozen=True, slots=True)
class Call:
    """`function(arguments)`; a method's target is its first argument."""

    function: str
    arguments: tuple["Expression", ...]
    is_method: bool


@dataclass(frozen=True, slots=True)
class Comprehension:
    """`target.macro(variable, body)`."""

    macro: Macro
    target: "Expression"
    variable: str
    body: "Expression"


@dataclass(frozen=True, slots=True)
class Binary:
    """`left operator right`."""

    operator: str
    left: "Expression"
    right: "Expression"


@dataclass(frozen=True, slots=True)
class Conditional:
    """`condition ? then : otherwise`."""

    condition: "Expression"
    then: "Expression"
    otherwise: "Expression"


type Expression = Constant | Name | ListOf | Select | Has | Call | Comprehension | Binary | Conditional


def evaluate(expression: Expression, scope: Scope) -> Any:  # noqa: C901, PLR0911  one case per kind of node
    """Value of `expression` where names stand for what `scope` says.

    Raises:
        CelError: an unknown name, a missing field, or operands of the wrong type.
    """
    match expression:
        case Constant(value):
            return value
        case Name(name):
            return _look_up(name, scope)
        case ListOf(items):
            return [evaluate(item, scope) for item in items]
        case Select(target, field):
            return _field(evaluate(target, scope), field)
        case Has(Select(target, field)):
            return field in _mapping(evaluate(target, scope), field)
        case Call(function, arguments, is_method):
            table = METHODS if is_method else FUNCTIONS
            return table[function](*(evaluate(argument, scope) for argument in arguments))
        case Comprehension(macro, target, variable, body):
            elements = list(evaluate(target, scope))
            return _comprehend(macro, elements, [evaluate(body, {**scope, variable: element}) for element in elements])
        case Binary("&&", left, right):
            return _truth(evaluate(left, scope)) and _truth(evaluate(right, scope))
        case Binary("||", left, right):
            return _truth(evaluate(left, scope)) or _truth(evaluate(right, scope))
        case Binary(operator, left, right):
            return BINARY[operator](evaluate(left, scope), evaluate(right, scope))
        case Conditional(condition, then, otherwise):
            return evaluate(then if _truth(evaluate(condition, scope)) else otherwise, scope)
        case _:
            assert_never(expression)


def _look_up(name: str, scope: Scope) -> Any:
    if name in scope:
        return scope[name]
    if name in TYPES:
        return TYPES[name]
    raise CelError(f"undeclared reference to {name!r}")


def _mapping(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CelError(f"no field {field!r} in a value of type {type(value).__name__}")
    return value


def _field(value: Any, field: str) -> Any:
    fields = _mapping(value, field)
    if field not in fields:
        raise CelError(f"no such key: {field}")
    return fields[field]


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"expected a bool, found {type(value).__name__}")
    return value


def _comprehend(macro: Macro, items: list[Any], results: list[Any]) -> Any:
    match macro:
        case "all":
            return all(_truth(result) for result in results)
        case "exists":
            return any(_truth(result) for result in results)
        case "exists_one":
            return sum(_truth(result) for result in results) == 1
        case "filter":
            return [item for item, result in zip(items, results, strict=True) if _truth(result)]
        case "map":
            return results
        case _:
            assert_never(macro)


@cache
def compile_expression(source: str) -> Expression:
    """Parse `source`.

    Raises:
        CelError: with the position of what could not be read.
    """
    return _Parser(source).parse()


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>\d+\.\d+(?:[eE][-+]?\d+)?|\d+) |
        (?P<string>'(?:[^'\\]|\\.)*') |
        (?P<name>[A-Za-z_]\w*) |
        (?P<symbol>\|\||&&|[<>=!]=|[-+*/%<>!?:.,()\[\]])
    )""",
    re.VERBOSE,
)

_LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"||"}),
    frozenset({"&&"}),
    frozenset({"==", "!=", "<", "<=", ">", ">=", "in"}),
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%"}),
)
_WORDS = {"true": True, "false": False, "null": None}
_MACROS: dict[str, Macro] = {
    "all": "all",
    "exists": "exists",
    "exists_one": "exists_one",
    "filter": "filter",
    "map": "map",
}


class _Parser:
    """Recursive descent over the tokens of one expression; ends with the token `("end", "")`."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = [*_tokens(source), ("end", "")]
        self._position = 0

    def parse(self) -> Expression:
        expression = self._expression()
        if self._kind != "end":
            raise self._error("the end")
        return expression

    @property
    def _kind(self) -> str:
        return self._tokens[self._position][0]

    @property
    def _text(self) -> str:
        return self._tokens[self._position][1]

    def _next(self) -> str:
        text = self._text
        self._position += 1
        return text

    def _accept(self, symbol: str) -> bool:
        if self._kind in {"symbol", "name"} and self._text == symbol:
            self._position += 1
            return True
        return False

    def _expect(self, symbol: str) -> None:
        if not self._accept(symbol):
            raise self._error(f"{symbol!r}")

    def _error(self, wanted: str) -> CelError:
        return CelError(f"expected {wanted}, found {self._text or 'the end'!r} in {self._source!r}")

    def _expression(self) -> Expression:
        condition = self._binary(0)
        if not self._accept("?"):
            return condition
        then = self._binary(0)
        self._expect(":")
        return Conditional(condition, then, self._expression())

    def _binary(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self._kind in {"symbol", "name"} and self._text in _LEVELS[level]:
            operator = self._next()
            left = Binary(operator, left, self._binary(level + 1))
        return left

    def _unary(self) -> Expression:
        if self._accept("!"):
            return Call("!", (self._unary(),), is_method=False)
        if self._accept("-"):
            return Call("-", (self._unary(),), is_method=False)
        return self._member()

    def _member(self) -> Expression:
        value = self._primary()
        while True:
            if self._accept("["):
                value = Binary("[]", value, self._expression())
                self._expect("]")
            elif self._accept("."):
                if self._kind != "name":
                    raise self._error("a field or method")
                name = self._next()
                value = self._method(value, name) if self._accept("(") else Select(value, name)
            else:
                return value

    def _method(self, target: Expression, name: str) -> Expression:
        arguments = self._arguments(")")
        if name in _MACROS:
            if len(arguments) != 2 or not isinstance(arguments[0], Name):
                raise self._error(f"{name}(variable, body)")
            return Comprehension(_MACROS[name], target, arguments[0].name, arguments[1])
        if name not in METHODS:
            raise CelError(f"no method {name!r} in {self._source!r}")
        return Call(name, (target, *arguments), is_method=True)

    def _primary(self) -> Expression:  # noqa: PLR0911  one return per kind of token
        if self._accept("("):
            inner = self._expression()
            self._expect(")")
            return inner
        if self._accept("["):
            return ListOf(self._arguments("]"))
        kind, text = self._kind, self._next()
        match kind:
            case "number":
                return Constant(float(text) if "." in text else int(text))
            case "string":
                return Constant(re.sub(r"\\(.)", r"\1", text[1:-1]))
            case "name" if text in _WORDS:
                return Constant(_WORDS[text])
            case "name" if self._accept("("):
                return self._function(text)
            case "name":
                return Name(text)
            case _:
                self._position -= 1
                raise self._error("a value")

    def _function(self, name: str) -> Expression:
        arguments = self._arguments(")")
        if name == "has":
            if len(arguments) != 1 or not isinstance(arguments[0], Select):
                raise self._error("has(value.field)")
            return Has(arguments[0])
        if name not in FUNCTIONS:
            raise CelError(f"no function {name!r} in {self._source!r}")
        return Call(name, arguments, is_method=False)

    def _arguments(self, closing: str) -> tuple[Expression, ...]:
        arguments: list[Expression] = []
        while not self._accept(closing):
            if arguments:
                self._expect(",")
            arguments.append(self._expression())
        return tuple(arguments)


def _tokens(source: str) -> Iterator[tuple[str, str]]:
    position = 0
    end = len(source.rstrip())
    while position < end:
        found = _TOKEN.match(source, position)
        if found is None or found.lastgroup is None:
            raise CelError(f"unreadable at {position} in {source!r}")
        yield found.lastgroup, found[found.lastgroup]
        position = found.end()
