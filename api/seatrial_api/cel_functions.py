"""Operators, functions and methods of our CEL subset, with CEL's types: a bool is no number, an int is no double."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from seatrial_api.errors import SeatrialError
from seatrial_api.quantity import parse_quantity


class CelError(SeatrialError):
    """An expression could not be parsed or evaluated: a fault of the rule, or of a value that its schema refuses."""


TYPES: dict[str, type] = {"bool": bool, "int": int, "double": float, "string": str, "list": list, "map": dict}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _describe(*values: Any) -> str:
    return ", ".join(type(value).__name__ for value in values)


def equal(left: Any, right: Any) -> bool:
    """CEL's `==`: numbers by value, everything else only within its own type."""
    if _is_number(left) and _is_number(right):
        return bool(left == right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return type(left) is type(right) and bool(left == right)


def contains(item: Any, container: Any) -> bool:
    """CEL's `in`, over the items of a list or the keys of a map."""
    if not isinstance(container, list | Mapping):
        raise CelError(f"no such overload: in({_describe(item, container)})")
    return any(equal(item, other) for other in container)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def operator(left: Any, right: Any) -> bool:
        both_numbers = _is_number(left) and _is_number(right)
        if not both_numbers and not (isinstance(left, str) and isinstance(right, str)):
            raise CelError(f"no such overload: comparison of {_describe(left, right)}")
        return compare(left, right)

    return operator


def _arithmetic(name: str, compute: Callable[[Any, Any], Any], *kinds: type) -> Callable[[Any, Any], Any]:
    def operator(left: Any, right: Any) -> Any:
        if type(left) is not type(right) or type(left) not in kinds:
            raise CelError(f"no such overload: {_describe(left)} {name} {_describe(right)}")
        return compute(left, right)

    return operator


def _divide(left: Any, right: Any) -> Any:
    if isinstance(left, float):
        return left / right if right else float("nan")
    if right == 0:
        raise CelError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    return left - int(_divide(left, right)) * right


def _index(container: Any, key: Any) -> Any:
    try:
        return container[key]
    except (KeyError, IndexError, TypeError) as error:
        raise CelError(f"no such key: {key}") from error


def to_string(value: Any) -> str:
    """CEL's `string(value)`: doubles as C's `%g` writes them, with as many digits as they need."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_to_string(value)
    if isinstance(value, int | str):
        return str(value)
    raise CelError(f"no such overload: string({_describe(value)})")


def _double_to_string(value: float) -> str:
    exponent = Decimal(repr(value)).adjusted()
    digits = "".join(map(str, Decimal(repr(value)).as_tuple().digits)).rstrip("0") or "0"
    if value != 0 and not -4 <= exponent < 6:
        mantissa = f"{digits[0]}.{digits[1:]}".rstrip(".")
        return f"{'-' if value < 0 else ''}{mantissa}e{exponent:+03d}"
    return repr(value).removesuffix(".0")


def _to_int(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise CelError(f"cannot convert {value!r} to int") from error


def _to_quantity(value: Any) -> Decimal:
    try:
        return parse_quantity(value)
    except (TypeError, ValueError) as error:
        raise CelError(f"cannot convert {value!r} to a quantity") from error


def _size(value: Any) -> int:
    if not isinstance(value, str | list | Mapping):
        raise CelError(f"no such overload: size({_describe(value)})")
    return len(value)


def _negate(value: Any) -> Any:
    if not _is_number(value):
        raise CelError(f"no such overload: -{_describe(value)}")
    return -value


def _not(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"no such overload: !{_describe(value)}")
    return not value


def _index_of(items: list[Any], wanted: Any) -> int:
    return next((index for index, item in enumerate(items) if equal(item, wanted)), -1)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "==": equal,
    "!=": lambda left, right: not equal(left, right),
    "in": contains,
    "<": _ordered(lambda left, right: left < right),
    "<=": _ordered(lambda left, right: left <= right),
    ">": _ordered(lambda left, right: left > right),
    ">=": _ordered(lambda left, right: left >= right),
    "+": _arithmetic("+", lambda left, right: left + right, int, float, str, list),
    "-": _arithmetic("-", lambda left, right: left - right, int, float),
    "*": _arithmetic("*", lambda left, right: left * right, int, float),
    "/": _arithmetic("/", _divide, int, float),
    "%": _arithmetic("%", _remainder, int),
    "[]": _index,
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "!": _not,
    "-": _negate,
    "double": float,
    "dyn": lambda value: value,
    "int": _to_int,
    "quantity": _to_quantity,
    "size": _size,
    "string": to_string,
    "type": type,
}

METHODS: dict[str, Callable[..., Any]] = {
    "compareTo": lambda left, right: (left > right) - (left < right),
    "endsWith": lambda text, suffix: text.endswith(suffix),
    "indexOf": _index_of,
    "join": lambda items, separator: separator.join(items),
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "size": _size,
    "split": lambda text, separator: text.split(separator),
    "startsWith": lambda text, prefix: text.startswith(prefix),
}
"""The standard methods, and those that Kubernetes adds: `compareTo` of quantities, `indexOf`, `join`, `split`."""
