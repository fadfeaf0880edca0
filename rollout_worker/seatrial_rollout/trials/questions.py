"""Questions with one right answer, a line of JSON each, made into task directories whose verifier compares.

Three shapes are known, by their fields:

    id, question, answer, answer_type, category                 HLE; answer_type: multipleChoice | exactMatch
    Record ID, Question, Correct Answer, Incorrect Answer 1..3  GPQA; choices in an order that depends on the id alone
    id, question, choices, answer, category                     answer: a letter, or one of the choices
"""

import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seatrial_api.errors import InvalidInputError

_TOML = """\
schema_version = "1.4"

[metadata]
domain = {domain}
kind = "question"

[verifier]
timeout_sec = 60.0

[environment]
workdir = "/workspace"
"""
_ASK = "Think as long as you need. Then end with one line of this form:\n\nAnswer: {form}\n"
_TEST = r"""#!/bin/sh
# Right if the last line "Answer: ..." holds a line of `expected`, whatever its case, spacing, marks and last full stop.
here=$(dirname "$0")
logs=${LOGS:-/logs}
normal() { tr 'A-Z' 'a-z' | tr -d '*$`"' | tr -s ' \t\r' ' ' | sed 's/^ //; s/[ .]*$//'; }
last() { sed -n 's/^answer: *//p' | tail -n 1 | sed '@PICK@'; }
answer=$(cat "$logs/agent/final_answer.txt" 2>/dev/null | normal | last)
reward=0
if [ -n "$answer" ] && normal <"$here/expected" | grep -Fqx -- "$answer"; then reward=1; fi
echo "$reward" >"$logs/verifier/reward.txt"
"""
_LETTER = r"s/^(\{0,1\}\([a-z]\)\([^a-z0-9].*\)\{0,1\}$/\1/"
"""The letter of `B`, `(B)`, `B) the text`, as the script's sed reads it."""
_VERSION = b"1"
"""Of what is written; another one makes the tasks anew."""
_Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and what is right."""

    text: str
    """With its choices, if it has some."""
    answer: str
    """A letter if `is_choice`."""
    is_choice: bool
    domain: str


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Hle(_Record):
    question: _Text
    answer: _Text
    answer_type: Literal["multipleChoice", "exactMatch"] = "exactMatch"
    category: str = ""
    image: str | None = None

    def read(self, _name: str) -> Question:
        if self.image:
            raise InvalidInputError("image: the question shows a picture, and agents read text; remove the line")
        return Question(self.question, self.answer, self.answer_type == "multipleChoice", self.category)


class _Gpqa(_Record):
    question: _Text = Field(alias="Question")
    right: _Text = Field(alias="Correct Answer")
    wrong_1: _Text = Field(alias="Incorrect Answer 1")
    wrong_2: _Text = Field(alias="Incorrect Answer 2")
    wrong_3: _Text = Field(alias="Incorrect Answer 3")
    domain: str = Field(alias="High-level domain", default="")

    def read(self, name: str) -> Question:
        choices = [self.right, self.wrong_1, self.wrong_2, self.wrong_3]
        random.Random(name).shuffle(choices)  # noqa: S311  the same order always
        return _choose(self.question, choices, choices.index(self.right), self.domain)


class _Choices(_Record):
    question: _Text
    choices: Annotated[list[_Text], Field(min_length=2, max_length=26)]
    answer: _Text
    category: str = ""

    def read(self, _name: str) -> Question:
        letters = ascii_uppercase[: len(self.choices)]
        if self.answer in self.choices:
            right = self.choices.index(self.answer)
        elif len(self.answer) == 1 and self.answer.upper() in letters:
            right = letters.index(self.answer.upper())
        else:
            raise InvalidInputError(
                f"answer: {self.answer!r} is no choice; give a letter up to {letters[-1]}, or a choice"
            )
        return _choose(self.question, self.choices, right, self.category)


def write_questions(root: Path, cache_dir: Path, limit: int | None) -> dict[str, Path | InvalidInputError]:
    """Make task directories of the questions in one file of JSON lines, or in a folder of such files.

    Args:
        root: The file, or the folder.
        cache_dir: Receives one folder per distinct question; what is there already is used as it is.
        limit: Only the first ones in order of their names.

    Returns:
        By name (`id`, `Record ID`, else the line's place), in order: the folder, or what is wrong as `found; remedy`.

    Raises:
        InvalidInputError: if a name comes twice.
    """
    files = [root] if root.is_file() else sorted(root.rglob("*.jsonl"))
    lines: dict[str, str] = {}
    for file in files:
        for place, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip():
                name = _name(line) or f"{file.stem}-{place:06d}"
                if name in lines:
                    raise InvalidInputError(
                        f"{file}:{place}: question {name!r} comes twice; names must be unique in a set"
                    )
                lines[name] = line
    return {name: _write(name, line, cache_dir) for name, line in sorted(lines.items())[:limit]}


def read_question(name: str, line: str) -> Question:
    """A question of any of the shapes.

    Raises:
        InvalidInputError: if it is none, as `found; remedy`.
    """
    try:
        record = json.loads(line)
        return _shape(record).model_validate(record).read(name)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(f"{place}: {first['msg']}; correct this field") from exc
    except ValueError as exc:
        raise InvalidInputError(f"the line is no JSON ({exc}); correct or remove it") from exc


def _shape(record: Any) -> type[_Hle | _Gpqa | _Choices]:
    if not isinstance(record, Mapping):
        raise InvalidInputError("the line is no JSON object; correct or remove it")
    if "Question" in record:
        return _Gpqa
    return _Choices if "choices" in record else _Hle


def _name(line: str) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        return ""
    return str(record.get("id") or record.get("Record ID") or "") if isinstance(record, Mapping) else ""


def _choose(question: str, choices: Sequence[str], right: int, domain: str) -> Question:
    listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False))
    return Question(f"{question}\n\n{listed}", ascii_uppercase[right], is_choice=True, domain=domain)


def _write(name: str, line: str, cache_dir: Path) -> Path | InvalidInputError:
    """Write a task once; a folder in the cache is always complete, as it comes there by a rename."""
    try:
        question = read_question(name, line)
    except InvalidInputError as exc:
        return exc
    target = cache_dir / hashlib.sha256(b"\0".join((_VERSION, name.encode(), line.encode()))).hexdigest()[:32]
    if not target.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".question-", dir=cache_dir))
        try:
            for path, content in _files(question):
                (scratch / path).parent.mkdir(parents=True, exist_ok=True)
                (scratch / path).write_text(content, encoding="utf-8")
            (scratch / "tests/test.sh").chmod(0o755)
            (scratch / "environment/files").mkdir(parents=True)
            scratch.rename(target)
        except OSError:
            if not target.exists():  # another process may have been first
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _files(question: Question) -> Iterator[tuple[str, str]]:
    form = "the letter of the right choice" if question.is_choice else "your answer, and nothing else"
    yield "instruction.md", f"{question.text}\n\n{_ASK.format(form=f'<{form}>')}"
    yield "task.toml", _TOML.format(domain=json.dumps(question.domain or "default"))
    yield "tests/test.sh", _TEST.replace("@PICK@", _LETTER if question.is_choice else "")
    yield "tests/expected", f"{question.answer.strip()}\n"
