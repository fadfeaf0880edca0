"""Google's CEL evaluator, with the functions that Kubernetes adds: the judge of our own."""

from functools import cache
from typing import Any

from cel_expr_python import cel

from seatrial_api.quantity import parse_quantity

_STRINGS, _ANY = cel.Type.List(cel.Type.STRING), cel.Type.DYN


def _member(name: str, result: Any, parameters: list[Any], implementation: Any) -> Any:
    overload = cel.Overload(
        f"k8s_{name}", return_type=result, parameters=parameters, is_member=True, impl=implementation
    )
    return cel.FunctionDecl(name, [overload])


def _index_of(items: list[Any], wanted: Any) -> int:
    return items.index(wanted) if wanted in items else -1


def _compare(left: str, right: str) -> int:
    return int(parse_quantity(left).compare(parse_quantity(right)))


def _format(text: str, values: list[Any]) -> str:
    return text % tuple(values)


_KUBERNETES = cel.CelExtension(
    "kubernetes",
    [
        _member("split", _STRINGS, [cel.Type.STRING, cel.Type.STRING], lambda text, by: text.split(by)),
        _member("indexOf", cel.Type.INT, [cel.Type.List(_ANY), _ANY], _index_of),
        _member("compareTo", cel.Type.INT, [_ANY, _ANY], _compare),
        _member("format", cel.Type.STRING, [cel.Type.STRING, cel.Type.List(_ANY)], _format),
        cel.FunctionDecl(
            "quantity",
            [
                cel.Overload(
                    "k8s_quantity",
                    return_type=_ANY,
                    parameters=[cel.Type.STRING],
                    is_member=False,
                    impl=lambda text: text,
                )
            ],
        ),
    ],
)

_ENVIRONMENT = cel.NewEnv(variables={"self": _ANY, "oldSelf": _ANY}, extensions=[_KUBERNETES])


@cache
def compile_with_google(source: str) -> Any:
    """Parse and type-check; raises for an expression that CEL does not allow."""
    return _ENVIRONMENT.compile(source)


def evaluate_with_google(source: str, scope: dict[str, Any]) -> Any:
    """Value of an expression; raises for an evaluation error."""
    value = compile_with_google(source).eval(data=scope)
    if value.type() == cel.Type.ERROR:
        raise ValueError(value.plain_value())
    return value.plain_value()
