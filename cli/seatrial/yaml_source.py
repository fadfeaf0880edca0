"""YAML with line numbers, read as Kubernetes reads it: `4:2` and dates are text, `1e-6` a number, keys are unique."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

type Location = tuple[str | int, ...]
"""Keys and indices from the top of a document."""

_MAX_NODES = 100_000
_INT = re.compile(r"[-+]?(?:0x[0-9a-fA-F_]+|0o?[0-7_]+|[0-9][0-9_]*)$")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")
_INFINITE = re.compile(r"[-+]?\.inf$|\.nan$", re.IGNORECASE)
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class YamlProblem:
    """Something that cannot be read."""

    line: int
    message: str
    location: Location = ()


@dataclass(slots=True)
class Document:
    """One document of a file, as plain data."""

    line: int
    data: Any = None
    lines: dict[Location, int] = field(default_factory=dict)
    """Line of every key and item, from 1."""
    problems: list[YamlProblem] = field(default_factory=list)

    def line_of(self, location: Location) -> int:
        """Line of `location`, or of the nearest thing around it that is there."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, self.line)

    def set(self, location: Location, value: Any) -> bool:
        """Put `value` at `location`, as from the command line: line 0. False if there is no such item.

        Mappings on the way are made; items of lists are not.
        """
        *way, last = location
        parent: Any = self.data
        for key in way:
            if isinstance(parent, dict) and not isinstance(parent.get(key), dict | list):
                parent[key] = {}
            parent = parent[key] if isinstance(parent, dict) or self._has_item(parent, key) else None
        if not isinstance(parent, dict) and not self._has_item(parent, last):
            return False
        parent[last] = value
        self.lines[location] = 0
        return True

    @staticmethod
    def _has_item(parent: Any, key: str | int) -> bool:
        return isinstance(parent, list) and key in range(len(parent))


class _Loader(yaml.SafeLoader):
    """Resolves scalars as Kubernetes does."""

    yaml_implicit_resolvers = {  # noqa: RUF012  PyYAML's own spelling
        first: [entry for entry in entries if entry[0] in {f"{_TAG}bool", f"{_TAG}null", f"{_TAG}merge"}]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


for _kind, _pattern in (("int", _INT), ("float", _FLOAT), ("float", _INFINITE)):
    _Loader.add_implicit_resolver(f"{_TAG}{_kind}", _pattern, list("-+0123456789."))


def read_documents(text: str) -> list[Document]:
    """Every document of a YAML text; what cannot be read is among its problems. Never raises for bad input."""
    documents: list[Document] = []
    loader = None
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                break
            document = Document(line=node.start_mark.line + 1)
            documents.append(document)
            document.data = _Builder(loader, document).build(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        documents.append(_unreadable(mark.line + 1 if mark else 1, error.problem or error.context or "malformed"))
    except yaml.YAMLError as error:
        documents.append(_unreadable(1, str(error).splitlines()[0]))
    except RecursionError:
        documents.append(_unreadable(1, "nested too deeply"))
    finally:
        if loader is not None:
            loader.dispose()
    return documents


def _unreadable(line: int, message: str) -> Document:
    return Document(line=line, problems=[YamlProblem(line, f"not readable as YAML: {message}")])


class _Builder:
    """Turns the nodes of one document into plain data."""

    def __init__(self, loader: _Loader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._open: list[Node] = []
        self._nodes = 0

    def build(self, node: Node, location: Location) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise yaml.MarkedYAMLError(
                problem=f"more than {_MAX_NODES} values once aliases are expanded", problem_mark=node.start_mark
            )
        if any(node is other for other in self._open):
            raise yaml.MarkedYAMLError(problem="an alias holds itself", problem_mark=node.start_mark)
        self._document.lines.setdefault(location, node.start_mark.line + 1)
        self._open.append(node)
        try:
            return self._value(node, location)
        finally:
            self._open.pop()

    def _value(self, node: Node, location: Location) -> Any:
        if isinstance(node, MappingNode):
            self._check_keys(node, location)
            self._loader.flatten_mapping(node)
            return dict(self._items(node, location))
        if isinstance(node, SequenceNode):
            return [self.build(item, (*location, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, location)

    def _check_keys(self, node: MappingNode, location: Location) -> None:
        """Before merges are merged: keys are text, and no two are alike."""
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                self._problem(line, "a key must be text", location)
            elif key.value in seen:
                message = f"the key {key.value} stands here twice; first on line {seen[key.value]}"
                self._problem(line, message, (*location, key.value))
            else:
                seen[key.value] = line

    def _items(self, node: MappingNode, location: Location) -> Iterator[tuple[str, Any]]:
        for key, value in node.value:
            if isinstance(key, ScalarNode):
                below = (*location, key.value)
                self._document.lines[below] = key.start_mark.line + 1
                yield key.value, self.build(value, below)

    def _scalar(self, node: Node, location: Location) -> Any:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "null":
                return None
            case "bool":
                return text.lower() in {"true", "yes", "on"}
            case "int":
                return _to_int(text)
            case "float":
                return self._finite(text, node, location)
            case "str" | "value":
                return text
            case tag:
                self._problem(
                    node.start_mark.line + 1, f"the tag {tag} means nothing here; write plain values", location
                )
                return text

    def _finite(self, text: str, node: Node, location: Location) -> float:
        try:
            number = float(text.replace("_", ""))
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self._problem(node.start_mark.line + 1, f"{text} is no number that JSON can hold", location)
            return 0.0
        return number

    def _problem(self, line: int, message: str, location: Location) -> None:
        self._document.problems.append(YamlProblem(line, message, location))


def _to_int(text: str) -> int | str:
    digits = text.replace("_", "").lower()
    unsigned = digits.lstrip("+-")
    base = 16 if unsigned.startswith("0x") else 8 if re.fullmatch(r"0o?[0-7]+", unsigned) else 10
    try:
        return int(digits, base)
    except ValueError:
        return text
