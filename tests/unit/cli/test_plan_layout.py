"""What a plan says of training ranks: memory by stage, idle time, and a layout that fits."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from seatrial.plan import Plan, make_plan
from seatrial.plan_layout import LayoutInputs
from seatrial.plan_view import render
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.backend import TrainerSpec
from tests.manifests import run_manifest
from tests.model_configs import LLAMA_8B, QWEN3_30B


def plan(tmp_path: Path, config: dict[str, Any] | None = QWEN3_30B, *, gib: float = 80, **changes: Any) -> Plan:
    trainer = {"backend": "megatron", "ranks": 8, **changes.pop("trainer", {})}
    topology = {"nodes": 2, "gpusPerNode": 8, "inferenceTrainRatio": "1:1"}
    run = RLRun.model_validate(run_manifest(**{"spec__trainer": trainer, "spec__topology": topology, **changes}))
    if config is not None:
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    return make_plan(run, tmp_path, "operator", layout_inputs=LayoutInputs(gpu_memory_gib=gib))


def shown(planned: Plan) -> str:
    output = StringIO()
    Console(file=output, width=120).print(render(planned))
    return output.getvalue()


FITTING: dict[str, Any] = {"parallelism": {"tensor": 2, "expert": 8}, "recompute": "Full"}


def test_a_layout_that_fits_shows_what_each_rank_needs(tmp_path: Path) -> None:
    planned = plan(tmp_path, trainer=FITTING)
    assert planned.layout is not None
    assert planned.layout.fits
    assert not [note for note in planned.notes if "layout" in note]
    text = shown(planned)
    assert "8 = tensor 2 x pipeline 1 x context 1 x 4 replicas; experts over 8 x 1 ranks of a stage, 1 times" in text
    assert "30.5 billion parameters" in text
    assert "of 80.0 GiB" in text


def test_a_layout_that_does_not_fit_is_noted_with_one_that_does(tmp_path: Path) -> None:
    planned = plan(tmp_path)
    (note,) = [note for note in planned.notes if "this one would fit" in note]
    assert note.startswith("the training layout needs more memory than a GPU has")
    wanted = yaml.safe_load(note.split("this one would fit: ")[1])["trainer"]
    assert TrainerSpec.model_validate({"backend": "megatron", **wanted}).ranks == 8
    again = plan(tmp_path, trainer=wanted)
    assert again.layout is not None
    assert again.layout.fits
    assert not [refusal for refusal in again.refusals if "trainer" in refusal.path]


def test_a_layout_that_does_not_divide_the_model_is_refused_by_its_field(tmp_path: Path) -> None:
    planned = plan(tmp_path, {**QWEN3_30B, "num_hidden_layers": 47}, trainer={"parallelism": {"pipeline": 2}})
    assert "spec.trainer.parallelism.pipeline: 2 does not divide the model's 47 layers; choose a divisor" in map(
        str, planned.refusals
    )
    assert any("the training layout is refused; this one would fit" in note for note in planned.notes)


def test_nothing_that_fits_is_said_too(tmp_path: Path) -> None:
    assert any("no training layout of up to eight times the ranks" in note for note in plan(tmp_path, gib=4).notes)


def test_a_pipeline_that_waits_much_is_noted(tmp_path: Path) -> None:
    planned = plan(tmp_path, trainer={"parallelism": {"pipeline": 8, "expert": 1}, "recompute": "Full"})
    # 16 x 16 trials of 1,024 tokens are 16 micro-batches of 16,384, and 7 of 23 slots pass before all stages work.
    assert planned.layout is not None
    assert planned.layout.num_microbatches == 16
    assert any(f"stand idle for {7 / 23:.0%} of a step" in note for note in planned.notes)


def test_a_vocabulary_that_does_not_divide_is_filled_up(tmp_path: Path) -> None:
    planned = plan(tmp_path, {**LLAMA_8B, "vocab_size": 128_257}, trainer={"parallelism": {"tensor": 8}})
    assert "filled up with 7 tokens" in shown(planned)


def test_engines_that_share_the_gpus_leave_ranks_the_rest(tmp_path: Path) -> None:
    shared: dict[str, Any] = {
        "spec__topology": {"nodes": 1, "gpusPerNode": 1},
        "spec__rollout__engines": {"gpuMemoryUtilization": 0.75},
        "spec__async__weightSync": {"method": "files"},
    }
    planned = plan(tmp_path, trainer={"ranks": 1}, **shared)
    assert planned.layout is not None
    assert planned.layout.gpu_bytes == 20 * 2**30


def test_on_cpus_the_layout_is_shown_and_nothing_bounds_it(tmp_path: Path) -> None:
    on_cpus: dict[str, Any] = {"spec__topology": {"gpusPerNode": 0}, "spec__async__weightSync": {"method": "gloo"}}
    planned = plan(tmp_path, trainer={"ranks": 2}, **on_cpus)
    assert planned.layout is not None
    assert planned.layout.fits
    assert planned.layout.gpu_bytes is None


@pytest.mark.parametrize(
    ("config", "says"),
    [(None, "--model-config shows what each rank would need"), ({"model_type": "bloom"}, "'bloom' are not known")],
)
def test_a_model_that_cannot_be_sized_is_noted(tmp_path: Path, config: dict[str, Any] | None, says: str) -> None:
    planned = plan(tmp_path, config)
    assert planned.layout is None
    assert any(says in note for note in planned.notes)


def test_a_config_that_was_named_and_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    run = RLRun.model_validate(run_manifest())
    with pytest.raises(InvalidInputError, match="--model-config"):
        make_plan(run, tmp_path, layout_inputs=LayoutInputs(tmp_path / "nothing"))
