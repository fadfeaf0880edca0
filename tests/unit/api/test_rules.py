"""Every cross-field rule, broken once: what is blamed, and in which words."""

from typing import Any

import pytest
from pydantic import ValidationError

from seatrial_api.crd import KINDS
from seatrial_api.rlrun import RLRun
from seatrial_api.rules import COLLECT, Rule, RuledModel, Violation, violations
from seatrial_api.walk import model_types
from tests.broken_rules import CASES, FREE_UPDATES, UPDATES, changed
from tests.manifests import run_manifest


def broken_by(model: type[Any], manifest: dict[str, Any]) -> list[Violation]:
    return list(violations(model.model_validate(manifest, context=COLLECT)))


@pytest.mark.parametrize(("model", "manifest", "changes", "path", "words"), CASES)
def test_a_broken_rule_blames_its_field_and_says_what_to_do(
    model: type[Any], manifest: dict[str, Any], changes: dict[str, Any], path: str, words: str
) -> None:
    model.model_validate(manifest)
    found = broken_by(model, changed(manifest, changes))
    assert (path, True) in [(violation.path, words in violation.message) for violation in found], found


@pytest.mark.parametrize(("model", "manifest", "changes", "path", "words"), CASES)
def test_validation_raises_the_words_of_the_rule(
    model: type[Any], manifest: dict[str, Any], changes: dict[str, Any], path: str, words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(changed(manifest, changes))
    assert "[type=rule" in str(caught.value)


def updated(model: type[Any], manifest: dict[str, Any], changes: dict[str, Any]) -> list[Violation]:
    old, new = model.model_validate(manifest), model.model_validate(changed(manifest, changes))
    return list(violations(new, old))


@pytest.mark.parametrize(("model", "manifest", "changes", "path"), UPDATES)
def test_what_decides_a_run_cannot_change_after_creation(
    model: type[Any], manifest: dict[str, Any], changes: dict[str, Any], path: str
) -> None:
    assert [violation.path for violation in updated(model, manifest, changes)] == [path]


@pytest.mark.parametrize("changes", FREE_UPDATES)
def test_what_steers_a_running_run_may_change(changes: dict[str, Any]) -> None:
    begun = run_manifest(status__stages=[{"name": "train"}])
    assert updated(RLRun, begun, changes) == []


def test_every_rule_is_broken_by_a_case_of_this_table() -> None:
    every: set[Rule] = {
        rule
        for kind in KINDS
        for model in model_types(kind.model)
        if issubclass(model, RuledModel)
        for rule in model.rules
    }
    created = {item.rule for model, base, changes, *_ in CASES for item in broken_by(model, changed(base, changes))}
    updates = {item.rule for model, base, changes, _ in UPDATES for item in updated(model, base, changes)}
    assert every - created - updates == set()
