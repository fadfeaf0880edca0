"""Manifests: every problem at once, each with its line, field, value and way out."""

import copy
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from seatrial.manifest import ManifestError, load_run, read_manifest
from seatrial.repair import placeholder
from seatrial.validate import exit_code, print_validation, validate
from seatrial_api.crd import KINDS, Schema, structural_schema
from seatrial_api.playbook import ExitCode
from seatrial_api.rlrun import RLRun
from tests.manifests import run_manifest

FAULTY = """\
apiVersion: seatrial.dev/v1alpha1
kind: RLRun
metadata:
  name: Bad_Name
spec:
  model:
    source: {path: m, hf: {repo: a/b}}
    contextLength: {trayn: 512}
  data:
    train: {source: {path: t}}
    train: {source: {path: t}}
  algorithm:
    batchSize: 16
    minibatchSize: 5
    groupSize: "8"
    optimizer: {learningRate: 1e-6, betas: [0.9, 1.5]}
  async:
    concurrency: auto
  topology:
    nodes: 14
    inferenceTrainRatio: 4:2
    hold: run
  rollout: {engines: {gpuMemoryUtilization: 1.2}}
  stages:
    - name: train
      trayn: {steps: 3}
    - name: x
      train: {steps: 0, validate_every_steps: 3}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def write_run(tmp_path: Path, **changes: Any) -> Path:
    return write(tmp_path, yaml.safe_dump(run_manifest(**changes)))


def problems_in(path: Path) -> list[str]:
    return [str(problem).removeprefix(f"{path}:") for problem in read_manifest(path).problems]


def test_every_problem_of_a_file_is_told_at_once_in_order_of_lines(tmp_path: Path) -> None:
    found = problems_in(write(tmp_path, FAULTY))
    expected = [
        ("4: metadata.name: the name Bad_Name becomes part of a Service's", "rename the object"),
        ("7: spec.model.source: a source needs exactly one of path, hf, s3, pvc", "2 are set"),
        ("8: spec.model.contextLength.trayn: is unknown", "did you mean train?"),
        ("11: spec.data.train: the key train stands here twice", "first on line 10"),
        ("14: spec.algorithm.minibatchSize: minibatchSize 5 does not divide batchSize 16", "choose a divisor"),
        ("15: spec.algorithm.groupSize: must be a whole number", 'found "8"'),
        ("16: spec.algorithm.optimizer.betas[1]: must be less than 1.0", "found 1.5"),
        ("18: spec.async.concurrency: must be Auto", 'found "auto"'),
        ("21: spec.topology.inferenceTrainRatio: inferenceTrainRatio 4:2 does not divide 14 nodes", "multiple of 6"),
        ("22: spec.topology.hold: must be one of Segment, Run; did you mean Run?", 'found "run"'),
        ("23: spec.rollout.engines.gpuMemoryUtilization: must be at most 1.0", "found 1.2"),
        ("24: spec.stages: a Train stage validates and data.validation is empty", "add that set"),
        ("26: spec.stages[0].trayn: is unknown", "did you mean train?"),
        ("28: spec.stages[1].train.validate_every_steps: is unknown", "did you mean validateEverySteps?"),
        ("28: spec.stages[1].train.steps: must be at least 1", "found 0"),
    ]
    assert len(found) == len(expected)
    for line, (start, end) in zip(found, expected, strict=True):
        assert line.startswith(start)
        assert end in line


def test_a_valid_file_has_no_problem_and_loads(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    assert load_run(path) == RLRun.model_validate(run_manifest())


def test_a_missing_field_is_named_with_what_it_is_for(tmp_path: Path) -> None:
    (problem,) = problems_in(write_run(tmp_path, spec__data__train__source=None))
    assert problem.endswith("spec.data.train.source: is required and missing: Where the tasks are")


def test_a_missing_section_does_not_hide_a_broken_rule(tmp_path: Path) -> None:
    changes = {"spec__model": None, "spec__algorithm": {"minibatchSize": 5}}
    found = problems_in(write_run(tmp_path, **changes))
    assert [line.split(":")[1].strip() for line in found] == ["spec.model", "spec.algorithm.minibatchSize"]


def test_a_field_far_from_any_known_one_is_told_what_is_known(tmp_path: Path) -> None:
    (problem,) = problems_in(write_run(tmp_path, spec__checkpoint={"zzz": 1}))
    assert problem.endswith("spec.checkpoint.zzz: is unknown; known here are everySteps, keep, asynchronous")


def test_an_arm_of_an_ablation_is_tried_on_the_spec(tmp_path: Path) -> None:
    arms = [{"name": "a", "patch": {}}, {"name": "b", "patch": {"algorithm": {"minibatchSize": 5}}}]
    (problem,) = problems_in(write_run(tmp_path, spec__stages__2={"name": "compare", "ablate": {"arms": arms}}))
    assert "spec.stages[2].ablate.arms[1].patch: arm b makes an invalid spec" in problem


def test_a_number_in_quotes_is_refused_as_the_api_server_refuses_it(tmp_path: Path) -> None:
    (problem,) = problems_in(write_run(tmp_path, spec__topology__nodes="1"))
    assert problem.endswith('spec.topology.nodes: must be a whole number; found "1"')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- a\n- b\n", "must be a mapping with apiVersion"),
        ("kind: RLrun\napiVersion: seatrial.dev/v1alpha1\n", "did you mean RLRun?"),
        ("kind: RLRun\n  spec: 1\n", "not readable as YAML"),
        ("a: [1, 2\n", "not readable as YAML"),
        ("kind: RLRun\nspec: *nobody\n", "not readable as YAML"),
        ("&a [*a]\n", "holds itself"),
        ("kind: !!python/object:os.system x\n", "means nothing here"),
        ("kind: RLRun\nspec: {? [a] : b}\n", "a key must be text"),
        ("kind: RLRun\nspec: {cost: {nodeHour: .inf}}\n", "no number that JSON can hold"),
        ("a: " + "[" * 3000, "YAML"),
        ("\0", "not readable as YAML"),
    ],
)
def test_what_is_no_manifest_gets_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    assert any(words in problem for problem in problems_in(write(tmp_path, text)))


def test_aliases_that_explode_are_stopped(tmp_path: Path) -> None:
    layers = "".join(f"l{index}: &l{index} [{', '.join([f'*l{index - 1}'] * 9)}]\n" for index in range(1, 9))
    (problem,) = problems_in(write(tmp_path, f"l0: &l0 [x, x]\n{layers}"))
    assert "more than 100000 values" in problem


def test_a_missing_file_a_folder_and_bytes_are_named(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, words in (("none.yaml", "No such file"), (".", "Is a directory"), ("bytes", "UTF-8")):
        (problem,) = problems_in(tmp_path / name)
        assert words in problem


def test_objects_of_other_groups_stand_beside_a_run(tmp_path: Path) -> None:
    other = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n---\n"
    path = write(tmp_path, other + yaml.safe_dump(run_manifest()))
    assert load_run(path).metadata.name == "run"


def test_a_file_must_hold_one_run(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="holds 2 objects of kind RLRun"):
        load_run(write(tmp_path, "---\n".join([yaml.safe_dump(run_manifest())] * 2)))


def test_fields_are_overridden_from_the_command_line(tmp_path: Path) -> None:
    run = load_run(
        write_run(tmp_path),
        ["spec.algorithm.seed=2", "spec.stages[3].train.steps=7", "spec.topology.inferenceTrainRatio=4:2"],
    )
    assert run.spec.algorithm.seed == 2
    assert run.spec.stages[3].train is not None
    assert run.spec.stages[3].train.steps == 7
    assert run.spec.topology.inference_train_ratio == "4:2"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("spec.algorithm.seed", "must be written as field=value"),
        ("=3", "must be written as field=value"),
        ("spec.algorithm.seed=[", "must be written as field=value"),
        ("spec.algorithm.sead=3", "--set: spec.algorithm.sead: is unknown; did you mean seed?"),
        ("spec.algorithm.seed=x", '--set: spec.algorithm.seed: must be a whole number; found "x"'),
        ("spec.stages[9].name=x", "there is no such item to set"),
    ],
)
def test_a_faulty_override_is_told_as_such(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ManifestError, match=r"--set") as caught:
        load_run(write_run(tmp_path), [override])
    assert words in str(caught.value)


def test_validation_of_several_files_exits_with_2_if_one_is_faulty(tmp_path: Path) -> None:
    good = write_run(tmp_path)
    bad = tmp_path / "bad.yaml"
    bad.write_text(FAULTY, encoding="utf-8")
    manifests = validate([good, bad])
    assert exit_code(manifests) is ExitCode.INVALID
    assert exit_code(manifests[:1]) is ExitCode.PASSED


def test_problems_are_printed_one_a_line_with_nothing_taken_for_markup(tmp_path: Path) -> None:
    path = write_run(tmp_path, spec__harness__name="[red]x")
    output = StringIO()
    print_validation(validate([path]), Console(file=output, width=20))
    (line,) = output.getvalue().splitlines()
    assert line.startswith(f"{path}:")
    assert "[red]x" in line


def test_a_placeholder_satisfies_every_schema_of_the_api() -> None:
    def leaves(schema: Schema) -> list[Schema]:
        inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
        return [schema, *(leaf for below in inner for leaf in leaves(below))]

    for kind in KINDS:
        for schema in leaves(structural_schema(kind.model)):
            if "pattern" in schema and "default" not in schema:
                assert placeholder(schema) != "", schema["pattern"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.sampled_from(["", "x", "Auto", "4:2", "ä"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "name", "path", "1"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    return [place for key, below in items for place in [(*path, key), *paths_of(below, (*path, key))]]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_malformed_manifest_ends_in_a_traceback(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    manifest: Any = copy.deepcopy(run_manifest(status={"stages": [{"name": "train"}]}))
    for _ in range(data.draw(st.integers(1, 4))):
        *way, last = data.draw(st.sampled_from(paths_of(manifest) or [("kind",)]))
        parent = manifest
        for key in way:
            parent = parent[key]
        action = data.draw(st.sampled_from(["replace", "remove", "rename"]))
        if action == "replace":
            parent[last] = data.draw(JSON)
        elif action == "remove":
            del parent[last]
        elif isinstance(parent, dict):
            parent[f"{last}x"] = parent.pop(last)
    path = tmp_path_factory.mktemp("manifest") / "run.yaml"
    path.write_text(yaml.safe_dump(manifest, allow_unicode=True), encoding="utf-8")
    read = read_manifest(path)
    assert bool(read.problems) != bool(read.objects) or not manifest
    for problem in read.problems:
        assert 1 <= problem.line <= path.read_text(encoding="utf-8").count("\n") + 1
        assert problem.message


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet="ab:-[]{}\n #&*!|>'\"%@?,1.\t", max_size=40))
def test_no_text_ends_in_a_traceback(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("manifest") / "run.yaml"
    path.write_text(text, encoding="utf-8")
    assert read_manifest(path).problems or not read_manifest(path).objects
