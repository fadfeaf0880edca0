"""A world with planted faults, each of which is found, in real sandboxes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.inspection.faults import Fault, FaultKind, InspectionReport
from seatrial_rollout.inspection.inspector import Inspector, Questions
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.spawn import HostConfig
from seatrial_rollout.trials.tasks import load_task_set
from tests.trial_hosts import trial_host
from tests.trial_tasks import VERIFIER, write_trial_task

pytestmark = pytest.mark.asyncio(loop_scope="module")

SANDBOX = SandboxSpec(provider="local")
WRITE_1 = "echo 1 > /logs/verifier/reward.txt"
WRITE_0 = "echo 0 > /logs/verifier/reward.txt"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host() -> AsyncIterator[TrialHost]:
    async with trial_host(HostConfig()) as host:
        yield host


async def inspect(host: TrialHost, folder: Path, questions: Questions) -> InspectionReport:
    source = {"path": str(folder)}
    tasks = load_task_set(TaskSet.model_validate({"source": source}), folder, folder / "cache")
    return await Inspector("office", host, SANDBOX, num_trials=4, questions=questions).inspect(tasks)


def found(report: InspectionReport, task: str) -> list[Fault]:
    return [fault for fault in report.faults if fault.task == task]


async def test_every_planted_fault_is_found_and_nothing_else(host: TrialHost, tmp_path: Path) -> None:
    def plant(name: str, verifier: str = VERIFIER, **files: str) -> None:
        write_trial_task(tmp_path / name, verifier=verifier, files={**files})

    plant("sound")
    plant("unsolved", **{"solution/solve.sh": "#!/bin/sh\necho 41 > /workspace/answer.txt\n"})
    plant("generous", f"#!/bin/sh\n{WRITE_1}\n")
    looks = f"if grep -qx 42 answer.txt; then {WRITE_1}; else {WRITE_0}; fi"
    plant("trusting", f'#!/bin/sh\ncd /workspace; PATH=".:$PATH"\n{looks}\n')
    plant("fragile", f"#!/bin/sh\ntest -s /workspace/notes.txt || exit 1\n{VERIFIER}")
    plant("absent", f"#!/bin/sh\nif grep -q Nothing /workspace/notes.txt; then {WRITE_0}; else {WRITE_1}; fi\n")
    copied = "Write the answer to life, the universe and everything into answer.txt."
    plant("open", **{"environment/files/old/solve.sh": "#!/bin/sh\necho 42\n", "instruction.md": copied})
    corpus = ("guide", "The answer to life, the universe and everything is known.")
    report = await inspect(host, tmp_path, Questions(2, contamination_ngram=8, corpora=[corpus]))

    assert found(report, "sound") == []
    kinds = {task: {fault.kind for fault in found(report, task)} for task in ("unsolved", "generous", "open")}
    assert kinds == {
        "unsolved": {FaultKind.SOLUTION_FAILS},
        "generous": {FaultKind.IDLE_PASSES},
        "open": {FaultKind.LEAKED, FaultKind.CONTAMINATED},
    }
    (trusting,) = found(report, "trusting")
    assert trusting.kind is FaultKind.TAMPERED
    assert trusting.detail == "an agent that puts its own commands before the verifier's is graded 1"
    fragile = {fault.detail.split(" keeps")[0] for fault in found(report, "fragile")}
    assert fragile == {"an agent that empties every file", "an agent that removes every file"}
    absent = {fault.detail for fault in found(report, "absent") if fault.kind is FaultKind.TAMPERED}
    assert absent == {
        "an agent that empties every file is graded 1",
        "an agent that removes every file is graded 1",
    }
    assert report.trials == 7 * (2 + 2 + 8) + 1, "solution and nothing twice, eight attempts; the tools, once"


async def test_a_verifier_that_throws_dice_is_flaky(host: TrialHost, tmp_path: Path) -> None:
    dice = f"#!/bin/sh\nif [ $(od -An -N1 -tu1 /dev/urandom) -lt 128 ]; then {WRITE_1}; else {WRITE_0}; fi\n"
    write_trial_task(tmp_path / "dice", verifier=dice)
    report = await inspect(host, tmp_path, Questions(repeats=12))
    assert FaultKind.FLAKY in {fault.kind for fault in report.faults}
