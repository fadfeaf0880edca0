"""Arms of an ablation: patches of the run's spec."""

from typing import Any

import pytest

from seatrial_api.ablation import merge_patch, patched_spec
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.stages import AblateArm
from tests.manifests import run_manifest

SPEC = RLRun.model_validate(run_manifest(spec__algorithm__minibatchSize=8)).spec


def arm(patch: dict[str, Any]) -> AblateArm:
    return AblateArm(name="arm", patch=patch)


def test_a_patch_changes_what_it_names_and_nothing_else() -> None:
    spec = patched_spec(SPEC, arm({"algorithm": {"loss": {"name": "glm5", "high": 0.3}}}))
    assert (spec.algorithm.loss.name, spec.algorithm.loss.high, spec.algorithm.loss.low) == ("glm5", 0.3, 0.15)
    assert spec.algorithm.minibatch_size == 8
    assert spec.model == SPEC.model


def test_null_empties_a_field() -> None:
    assert patched_spec(SPEC, arm({"algorithm": {"minibatchSize": None}})).algorithm.minibatch_size is None


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"model": {}, "stages": []}, "patches model, stages, which all arms share"),
        ({"algorithm": {"minibatchSize": 5}}, "algorithm: minibatchSize 5 does not divide batchSize 16"),
        ({"algorithm": {"los": {}}}, "algorithm.los"),
        ({"algorithm": {"group_size": 4}}, "algorithm.group_size"),
    ],
)
def test_an_arm_that_cannot_run_is_refused(patch: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match="arm arm") as caught:
        patched_spec(SPEC, arm(patch))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, None, None),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_patches_merge_as_the_rfc_says(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result
