import json
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, override

import pytest
import vl_convert
from tokenizers import Tokenizer, models, pre_tokenizers

from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError
from seatrial_api.finding import Finding, FindingKind
from seatrial_api.outcome import Outcome
from seatrial_api.rlrun import RLRun
from seatrial_api.stage_report import Estimate, GateResult, ReadAgain, StageReport, StageResult, TokenUse
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.evaluation.comparison import compare_arms
from seatrial_trainer.evaluation.summary import summarize
from seatrial_trainer.observability.token_use import tokens_of
from seatrial_trainer.reporting.charts import charts
from seatrial_trainer.reporting.report import write_report
from seatrial_trainer.reporting.token_view import view_sequences
from seatrial_trainer.storage.run_storage import REQUEST_FILE, RunStorage
from tests.steps import make_step
from tests.trajectories import make_trajectory

HOSTILE = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Collects what a page loads and shows."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.text: list[str] = []
        self.titles: list[str] = []
        self.scripts = 0

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.scripts += tag == "script"
        self.loaded += [value for name in ("src", "href") if (value := values.get(name))]
        if title := values.get("title"):
            self.titles.append(title)

    @override
    def handle_data(self, data: str) -> None:
        self.text.append(data)


def make_model(folder: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(40)}, unk_token="w0"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]  # the stub has no setter
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def without_answers(trial_id: str) -> Trajectory:
    """A trial in which a tool works and says nothing."""
    trajectory = make_trajectory(trial_id)
    (call,) = trajectory.turns[0].tool_calls
    silent = call.model_copy(update={"tool": "edit_cell", "result": ""})
    turn = trajectory.turns[0].model_copy(update={"tool_calls": [silent] * 3})
    return trajectory.model_copy(update={"turns": [turn]})


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    make_model(tmp_path / "policy")
    run = RLRun.model_validate(
        {
            "apiVersion": "seatrial.dev/v1alpha1",
            "kind": "RLRun",
            "metadata": {"name": "quickstart"},
            "spec": {
                "model": {"source": {"path": "policy"}, "contextLength": {"train": 512}},
                "data": {"train": {"source": {"path": "tasks"}}},
                "stages": [{"name": "train", "train": {"steps": 2, "validateEverySteps": 0}}],
            },
        }
    )
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / REQUEST_FILE).write_text(
        DriverRequest(run=run, base_dir=tmp_path, stages=["train"]).model_dump_json(by_alias=True)
    )
    stage = RunStorage(folder).stage("train")
    stage.write_group("g0", [make_trajectory("g0/0"), make_trajectory("g0/1", failed_calls=1)])
    stage.write_group("g1", [without_answers("g1/0")])
    planted = Finding(kind=FindingKind.TAMPERING, path=f"/tests/{HOSTILE}", detail="was there before the tests")
    lost = make_trajectory("g0/2", outcome=Outcome.SANDBOX_FAILED)
    stage.write_failure(lost.model_copy(update={"detail": HOSTILE, "findings": [planted]}))
    stage.write_comparison(0, {"g0/0": [[0.0, 0.0, 0.0, -0.5, -0.5, -0.6, -0.5]]})
    for version in (1, 2):
        stage.append_step(asdict(make_step(version=version)))
    gate = GateResult(name="error rate", value=0.0, bound=0.01, direction="AtMost")
    stage.write_report(StageReport(stage="train", kind="Train", result=StageResult.PASSED, gates=[gate]))
    return folder


def read(folder: Path) -> Page:
    page = Page()
    page.feed(write_report(folder).read_text())
    return page


def test_the_page_loads_nothing_from_anywhere(run_folder: Path) -> None:
    assert read(run_folder).loaded == []


def test_the_page_shows_stages_gates_outcomes_and_tools(run_folder: Path) -> None:
    text = " ".join(" ".join(read(run_folder).text).split())
    for shown in ("Passed", "error rate", "SandboxFailed", "sheets_lookup", "AnswersNothing", "Completed", "task-a"):
        assert shown in text
    table = text.partition("What sandboxes' audits found")[2]
    assert re.search("Tampering refused or undone 1 1 .*was there before the tests", table)


def test_the_page_tells_what_training_did_under_each_harness(run_folder: Path) -> None:
    tries = [make_trajectory(f"t{n}", task=f"task-{n}", reward=n % 2) for n in range(4)]
    for stage, gain in (("before", None), ("after", Estimate(mean=0.25, low=0.125, high=0.5, count=4))):
        results = [
            summarize("held-out T=1", harness, tries).model_copy(
                update={"gain": gain, "tokens": sum(map(tokens_of, tries), TokenUse(harness=harness))}
            )
            for harness in ("archipelago", "opencode")
        ]
        report = StageReport(stage=stage, kind="Evaluate", result=StageResult.PASSED, evaluations=results)
        RunStorage(run_folder).stage(stage).write_report(report)
    text = " ".join(" ".join(read(run_folder).text).split())
    section = text.partition("Trained with archipelago, evaluated with others")[2].partition("How agents worked")[0]
    for harness in ("archipelago trained with", "opencode"):
        assert f"held-out T=1 {harness} 50.0 %" in section
    assert section.count("+25.0 [+12.5, +50.0]") == 2
    assert section.count("before 0 3 4 after 0 3 4") == 2
    assert re.search(r"How agents worked .*sheets_lookup 4, 100 %, 2 of 4", text)


def arm_tries(*tasks: tuple[float, ...]) -> list[Trajectory]:
    """Rewards by task and pass."""
    return [
        make_trajectory(f"{task}-t{p:02d}-a1", task=f"task-{task}", reward=reward)
        for task, rewards in enumerate(tasks)
        for p, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize(
    ("passes", "base", "better"),
    [
        (2, "dppo 0.0 ± 0.0 % 0.000 ± 0.000 what", "tis 50.0 ± 70.7 % +50.0 [+50.0, +50.0] 0.500 ± 0.707 +0.500"),
        (1, "dppo 0.0 % 0.000 what", "tis 100.0 % +100.0 [+100.0, +100.0] 1.000 +1.000"),
    ],
)
def test_the_page_holds_arms_against_the_first_and_calls_noise_a_tie(
    run_folder: Path, passes: int, base: str, better: str
) -> None:
    rewards = {"dppo": [(0, 0), (0, 0)], "glm5": [(1, 1), (0, 0)], "tis": [(1, 0), (1, 0)]}
    results = compare_arms({arm: arm_tries(*(task[:passes] for task in tasks)) for arm, tasks in rewards.items()})
    report = StageReport(stage="compare", kind="Ablate", result=StageResult.PASSED, arms=results)
    RunStorage(run_folder).stage("compare").write_report(report)
    table = " ".join(" ".join(read(run_folder).text).split()).partition("Arms of compare")[2]
    assert base in table
    assert re.search(r"glm5 50\.0 .*\+50\.0 \[\+0\.0, \+100\.0\] .* a tie: within noise tis", table)
    assert re.search(re.escape(better) + r" .* better", table)


def test_the_page_tells_what_tokens_cost_and_why_some_were_computed_again(run_folder: Path) -> None:
    again = {ReadAgain.NEW_WEIGHTS: 500}
    use = TokenUse(harness="codex", trials=2, cached_prompt_tokens=3000, prompt_tokens=1000, read_again=again)
    report = StageReport(stage="before", kind="Evaluate", result=StageResult.PASSED, tokens=[use])
    RunStorage(run_folder).stage("before").write_report(report)
    text = " ".join(" ".join(read(run_folder).text).split())
    assert "before codex 2 3,000 1,000 0 75.0% NewWeights 50%" in text


def test_what_a_model_or_a_tool_wrote_cannot_become_part_of_the_page(run_folder: Path) -> None:
    page = read(run_folder)
    assert page.scripts == 1, "our own script alone"
    assert HOSTILE in "".join(page.text)


def test_a_sampled_token_tells_what_engine_and_trainer_think_of_it(run_folder: Path) -> None:
    titles = read(run_folder).titles
    assert any(re.search(r"token 12 · .*engine -0\.5000 · trainer -0\.6000 · difference 1\.00e-01", t) for t in titles)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="holds no run"):
        write_report(tmp_path)


def test_a_run_that_has_just_begun_has_a_report(run_folder: Path) -> None:
    RunStorage(run_folder).stage("train").discard()
    assert "No stage has ended yet." in " ".join(read(run_folder).text)


def test_every_chart_draws() -> None:
    ages: dict[str, Any] = {"staleness": {0: 2, 1: 6}, "rewards_by_staleness": {0: 0.5, 1: 0.25}}
    steps: list[dict[str, Any]] = [asdict(make_step(version=version, **ages)) for version in (1, 2, 3)]
    steps[1]["fresh_logprob_abs_diff_mean"] = None
    for spec in charts(steps, {1: 0.2, 3: 0.4}):
        svg = vl_convert.vegalite_to_svg(spec)
        assert svg.startswith("<svg")
        assert spec["title"] in svg


def test_the_report_tells_rewards_by_admission_and_groups_by_staleness() -> None:
    first = make_step(version=1, reward_mean=0.75, staleness={0: 2}, rewards_by_staleness={0: 0.75})
    second = make_step(version=2, reward_mean=0.5, staleness={0: 1, 1: 1}, rewards_by_staleness={0: 0.75, 1: 0.25})
    steps = [json.loads(json.dumps(asdict(step))) for step in (first, second)]  # as they are stored
    by_title = {spec["title"]: spec["data"]["values"] for spec in charts(steps, {})}

    by_admission = [(p["version"], p["value"]) for p in by_title["Reward"] if "admission" in p["measure"]]
    assert by_admission == [(0, pytest.approx((2 * 0.75 + 0.25) / 3)), (1, 0.75)]
    assert by_title["Groups by staleness"] == [{"key": 0, "count": 3}, {"key": 1, "count": 1}]


def test_a_long_sequence_is_shown_by_its_ends(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(make_model(tmp_path / "policy") / "tokenizer.json"))
    trajectory = make_trajectory(sampled=10)
    sequence = trajectory.sequences[0]
    long = sequence.model_copy(
        update={
            field: list(getattr(sequence, field)) * 500 for field in type(sequence).model_fields if field != "parent"
        }
    )
    (view,) = view_sequences(trajectory.model_copy(update={"sequences": [long]}), tokenizer, {})
    assert view.num_tokens == 13 * 500
    assert view.num_left_out == 13 * 500 - 4_000
    assert view.mean_difference is None
