"""YAML is read as Kubernetes reads it."""

import pytest

from seatrial.yaml_source import read_documents


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4:2", "4:2"),
        ("10:30", "10:30"),
        ("2026-01-01", "2026-01-01"),
        ("1e-6", 1e-6),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-3", -3),
        ("0x10", 16),
        ("0o17", 15),
        ("1_000", 1000),
        ("yes", True),
        ("off", False),
        ("null", None),
        ("~", None),
        ("'1'", "1"),
        ("1.2.3", "1.2.3"),
        ("v1", "v1"),
        ("=", "="),
    ],
)
def test_a_scalar_has_the_type_that_kubernetes_gives_it(text: str, value: object) -> None:
    (document,) = read_documents(f"x: {text}")
    assert document.data == {"x": value}
    assert type(document.data["x"]) is type(value)
    assert document.problems == []


def test_keys_are_text_and_merges_are_merged() -> None:
    (document,) = read_documents("base: &b {a: 1, b: 2}\nuse:\n  <<: *b\n  b: 3\n  1: one\n")
    assert document.data["use"] == {"a": 1, "b": 3, "1": "one"}
    assert document.problems == []


def test_every_place_knows_its_line() -> None:
    (document,) = read_documents("a:\n  b:\n    - c: 1\n\n    - d: 2\n")
    assert document.line_of(("a", "b", 0, "c")) == 3
    assert document.line_of(("a", "b", 1, "d")) == 5
    assert document.line_of(("a", "missing", "deep")) == 1


def test_documents_are_apart() -> None:
    first, second = read_documents("a: 1\n---\nb: 2\n")
    assert (first.data, first.line) == ({"a": 1}, 1)
    assert (second.data, second.line) == ({"b": 2}, 3)


def test_what_was_read_before_a_fault_is_kept() -> None:
    documents = read_documents("a: 1\n---\nb: [\n")
    assert documents[0].data == {"a": 1}
    assert documents[-1].problems
