"""Load a manifest: YAML into models, with every problem at once, each with its line, field, value and way out."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

from pydantic import ValidationError

from seatrial.repair import depends_on, exists, get, join, parse, repair
from seatrial.wording import describe, did_you_mean, nearest
from seatrial.yaml_source import Document, Location, read_documents
from seatrial_api.ablation import patched_spec
from seatrial_api.base import ApiModel
from seatrial_api.crd import KINDS
from seatrial_api.errors import InvalidInputError
from seatrial_api.kubernetes_object import API_GROUP, API_VERSION
from seatrial_api.rlrun import RLRun
from seatrial_api.rules import COLLECT, Violation, violations

_MODELS = {kind.name: kind.model for kind in KINDS}
_MAX_ROUNDS = 16
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to change in a manifest."""

    file: Path
    line: int
    """Line in the file, from 1; 0 for a value from the command line."""
    field: str
    """Path of the field: `spec.algorithm.batchSize`; empty for the document as a whole."""
    message: str
    """What is wrong and the way out."""
    value: str | None = None
    """What stands there, if the message does not say."""

    @property
    def place(self) -> str:
        """`run.yaml:12`, or `--set`."""
        return f"{self.file}:{self.line}" if self.line else "--set"

    @override
    def __str__(self) -> str:
        field = f" {self.field}:" if self.field else ""
        found = "" if self.value is None else f"; found {self.value}"
        return f"{self.place}:{field} {self.message}{found}"


class ManifestError(InvalidInputError):
    """A manifest that cannot be used, with all of its problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


@dataclass(frozen=True, slots=True)
class Manifest:
    """A file of objects, as far as they could be read."""

    path: Path
    objects: tuple[ApiModel, ...]
    """Objects of ours that are valid, in order."""
    problems: tuple[Problem, ...]


def load_run(path: Path, overrides: Sequence[str] = ()) -> RLRun:
    """The one RLRun of a file; other objects may stand beside it.

    Args:
        path: The file.
        overrides: Fields to set on top of it: `spec.algorithm.seed=2`, the value in YAML.

    Raises:
        ManifestError: with every problem of the file.
    """
    manifest = read_manifest(path, overrides)
    if manifest.problems:
        raise ManifestError(manifest.problems)
    runs = [item for item in manifest.objects if isinstance(item, RLRun)]
    if len(runs) != 1:
        raise ManifestError([Problem(path, 1, "", f"holds {len(runs)} objects of kind RLRun and must hold one")])
    return runs[0]


def read_manifest(path: Path, overrides: Sequence[str] = ()) -> Manifest:
    """Read a file and find all that is wrong with it; objects of other groups are passed over. Never raises.

    Args:
        path: The file.
        overrides: Fields to set in its RLRun, as `load_run` takes them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return Manifest(path, (), (Problem(path, 1, "", f"cannot be read: {error.strerror or error}"),))
    except UnicodeDecodeError as error:
        return Manifest(path, (), (Problem(path, 1, "", f"is not text in UTF-8 (byte {error.start})"),))
    documents = [document for document in read_documents(text) if document.data is not None or document.problems]
    if not documents:
        return Manifest(path, (), (Problem(path, 1, "", "is empty; examples/ has manifests to start from"),))
    readings = [_Reading(path, document, overrides) for document in documents]
    objects = tuple(reading.result for reading in readings if reading.result is not None)
    return Manifest(path, objects, tuple(problem for reading in readings for problem in reading.problems))


class _Reading:
    """One document on its way to an object: `result` if it is one of ours and valid, and its `problems`."""

    def __init__(self, path: Path, document: Document, overrides: Sequence[str]) -> None:
        self._path = path
        self._document = document
        self.result: ApiModel | None = None
        self.problems = [
            Problem(path, problem.line, join(problem.location), problem.message) for problem in document.problems
        ]
        model = self._model()
        if model is RLRun:
            self._apply(overrides)
        if model is not None:
            self._validate(model)
        self.problems.sort(key=lambda problem: problem.line)

    def _model(self) -> type[ApiModel] | None:
        data = self._document.data
        if data is None:
            return None
        if not isinstance(data, dict):
            self._report((), "must be a mapping with apiVersion, kind, metadata and spec", data)
            return None
        kind, version = data.get("kind"), data.get("apiVersion")
        if isinstance(kind, str) and kind in _MODELS:
            return _MODELS[kind]
        if isinstance(kind, str) and isinstance(version, str) and not nearest(version, [f"{API_GROUP}/{API_VERSION}"]):
            return None  # another group's object
        self._report(("kind",), f"must be one of {', '.join(_MODELS)}{did_you_mean(kind, _MODELS)}", kind)
        return None

    def _apply(self, overrides: Sequence[str]) -> None:
        for assignment in overrides:
            field, separator, text = assignment.partition("=")
            location, documents = parse(field), read_documents(text)
            if not separator or not location or len(documents) != 1 or documents[0].problems:
                self.problems.append(Problem(self._path, 0, field, "must be written as field=value, the value in YAML"))
            elif not self._document.set(location, documents[0].data):
                self.problems.append(Problem(self._path, 0, field, "there is no such item to set"))

    def _validate(self, model: type[ApiModel]) -> None:
        """Schema first; then rules, with placeholders for what is faulty."""
        remaining = json.loads(json.dumps(self._document.data))
        repaired: list[Location] = []
        for _ in range(_MAX_ROUNDS):
            try:
                value = model.model_validate_json(
                    json.dumps(remaining), strict=True, context=COLLECT, by_alias=True, by_name=False
                )
            except ValidationError as error:
                faulty = self._report_faulty(model, error, remaining, repaired)
                repair(model, remaining, faulty)
                repaired += faulty
            else:
                self._report_rules(violations(value), repaired)
                if isinstance(value, RLRun) and not self.problems:
                    self._report_arms(value)
                self.result = None if self.problems else value
                return

    def _report_faulty(
        self, model: type[ApiModel], error: ValidationError, data: Any, repaired: Sequence[Location]
    ) -> list[Location]:
        """Report misspelt fields alone if there are any: what is missing may be what they meant."""
        errors = error.errors(include_url=False)
        unknown = [item for item in errors if item["type"] == "extra_forbidden"]
        found: dict[Location, list[str]] = {}
        for item in unknown or errors:
            location = _existing(data, item["loc"], may_lack_last=item["type"] == "missing")
            found.setdefault(location, []).append(describe(model, location, item))
        for location, messages in found.items():
            if location in repaired:
                continue
            first, *others = dict.fromkeys(messages)
            sentence = " or ".join([first, *(other.removeprefix("must be ") for other in others)])
            self._report(location, sentence, None if unknown else get(data, location))
        return list(found)

    def _report_rules(self, broken: Iterator[Violation], repaired: Sequence[Location]) -> None:
        for violation in broken:
            if not depends_on(violation, repaired):
                self._report(parse(violation.path), violation.message, None)

    def _report_arms(self, run: RLRun) -> None:
        for index, stage in enumerate(run.spec.stages):
            for number, arm in enumerate(stage.ablate.arms if stage.ablate else []):
                try:
                    patched_spec(run.spec, arm)
                except InvalidInputError as error:
                    location = ("spec", "stages", index, "ablate", "arms", number, "patch")
                    self._report(location, str(error), None)

    def _report(self, location: Location, message: str, value: Any) -> None:
        shown = None if value is None else _show(value)
        line = self._document.line_of(location)
        self.problems.append(Problem(self._path, line, join(location), message, shown))


def _existing(data: Any, location: Sequence[str | int], *, may_lack_last: bool) -> Location:
    """The part of pydantic's location that names data; it also names the branches of unions."""
    for depth, key in enumerate(location):
        if not exists(data, key):
            return (*location[:depth], location[-1]) if may_lack_last else tuple(location[:depth])
        data = data[key]
    return tuple(location)


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
