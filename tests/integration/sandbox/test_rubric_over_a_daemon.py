"""A rubric over a claimed sandbox, which itself tells what the agent changed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig, VerifierConfig
from harbor.trial.trial import Trial

from seatrial_rollout.environment.isolation import Means
from seatrial_rollout.trials.judging import JudgeSetting
from tests.judge_provider import JudgeService, provider
from tests.judges import judge
from tests.sandbox_daemons import DaemonSource, means, no_isolation
from tests.trial_tasks import write_trial_task

pytestmark = [
    pytest.mark.filterwarnings("ignore:Task.checksum:DeprecationWarning"),  # Harbor's own use
    pytest.mark.skipif(means() is Means.PLAIN, reason=no_isolation()),
]

WORK = """#!/bin/sh
cd /workspace
echo 'The answer is 42.' > essay.md
echo 'nothing more' > notes.txt
rm old.txt
head -c 9 /dev/zero > picture.raw
mkdir -p /logs/agent && echo 'Done: 42.' > /logs/agent/final_answer.txt
"""


@pytest.fixture(autouse=True)
def ended_sources() -> Iterator[None]:
    """No daemon outlives its test."""
    DaemonSource.made.clear()
    yield
    for source in DaemonSource.made:
        for daemon in source.daemons:
            daemon.stop()


def passes(body: dict[str, Any]) -> str:
    return json.dumps({"reasoning": "as told", "passed": "essay" in body["messages"][1]["content"]})


async def test_the_judge_is_shown_what_the_sandbox_says_was_changed(tmp_path: Path) -> None:
    rubric = {
        "criteria": [
            {"id": "a", "text": "An essay", "artifact": "*.md"},
            {"id": "b", "text": "A table", "artifact": "*.csv"},
        ]
    }
    files = {"solution/solve.sh": WORK, "tests/rubric.json": json.dumps(rubric), "environment/files/old.txt": "old"}
    task = write_trial_task(tmp_path / "task", servers=(), files=files)
    config = TrialConfig(
        task=TaskConfig(path=task),
        trials_dir=tmp_path / "trials",
        agent=AgentConfig(name="oracle"),
        environment=EnvironmentConfig(
            import_path="seatrial_rollout.environment.kubernetes:KubernetesEnvironment",
            kwargs={"source": "tests.sandbox_daemons:DaemonSource", "world": "office"},
        ),
        verifier=VerifierConfig(import_path="seatrial_rollout.trials.rubric_verifier:RubricVerifier"),
    )
    async with (
        JudgeService(reply=passes).serve() as service,
        judge(provider(service.url), audit=tmp_path / "audit.jsonl") as verifier,
    ):
        with JudgeSetting(verifier.access, "trial-1", 60.0).current():
            result = await (await Trial.create(config)).run()
        asked = [body["messages"][1]["content"] for body in service.bodies]
    assert result.exception_info is None, result.exception_info
    assert result.verifier_result is not None
    assert result.verifier_result.rewards == {"reward": 0.5, "a": 1.0, "b": 0.0}
    (shown,) = asked
    assert "final answer\nDone: 42." in shown
    files_shown = shown.partition(" files\n")[2]
    assert [line for line in files_shown.splitlines() if line.startswith("###")] == [
        "### added: essay.md",
        "### changed: notes.txt",
        "### removed: old.txt",
        "### added: picture.raw",
    ]
    assert "### added: essay.md\nThe answer is 42.\n" in files_shown
    assert "### added: picture.raw\n[9 bytes of an unknown type]" in files_shown
