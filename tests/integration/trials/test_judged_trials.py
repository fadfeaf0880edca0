"""Trials whose verifier asks a judge: real sandboxes, a real gateway, a provider over real HTTP."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from seatrial_api.errors import InvalidInputError
from seatrial_api.outcome import Outcome
from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.model import Source
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.judge.tokens import JudgeAccess
from seatrial_rollout.trials.host import TrialHost
from seatrial_rollout.trials.request import TrialMode, TrialRequest
from seatrial_rollout.trials.tasks import load_task_set
from tests.judge_provider import JudgeService, Reply, provider
from tests.judges import judge
from tests.trial_tasks import make_request, write_trial_task

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = """\
#!/bin/sh
cat > /tests/ask.py <<'END'
import json, os, urllib.request
question = {{
    "model": os.environ["JUDGE_MODEL"],
    "messages": [{{"role": "user", "content": open("/workspace/answer.txt").read()}}],
}}
try:
    {ask}
    print(1 if said == "yes" else 0)
except Exception:
    print(0)
END
printf '{{"reward": %s}}' "$(python3 /tests/ask.py)" > /logs/verifier/reward.json
"""
ASK_BY_OPENAI = SCRIPT.format(
    ask="import openai; said = openai.OpenAI().chat.completions.create(**question).choices[0].message.content"
)
ASK = SCRIPT.format(
    ask="""
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    headers = {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(question).encode(), headers)
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    """
)
"""The same without the client, which takes seconds to load."""
SHOW = """\
#!/bin/sh
cat /workspace/tried.txt; ls /workspace
env | grep -c fake_key
"""


@dataclass
class Court:
    """A judge of a run, and what it remembers."""

    service: JudgeService
    access: JudgeAccess
    audit: Path

    @property
    def records(self) -> list[dict[str, Any]]:
        """The audit log."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()] if self.audit.exists() else []


@asynccontextmanager
async def court(tmp_path: Path, reply: Reply = lambda _: "yes") -> AsyncIterator[Court]:
    audit = tmp_path / "audit.jsonl"
    async with JudgeService(reply=reply).serve() as service, judge(provider(service.url), audit=audit) as verifier:
        yield Court(service, verifier.access, audit)


def judged(request: TrialRequest, court: Court) -> TrialRequest:
    return replace(request, judge=court.access)


@pytest.mark.parametrize(
    ("verifier", "words", "reward"), [(ASK_BY_OPENAI, "yes", 1.0), (ASK, "no", 0.0)], ids=["openai", "urllib"]
)
async def test_a_verifier_reaches_the_judge_from_a_sandbox_without_network(
    host: TrialHost, tmp_path: Path, verifier: str, words: str, reward: float
) -> None:
    task = write_trial_task(tmp_path / "task", verifier=verifier)
    async with court(tmp_path, reply=lambda _: words) as open_court:
        trajectory = await host.run(judged(make_request(task, mode=TrialMode.ORACLE, trial_id="t-7"), open_court))
        assert open_court.service.bodies[0]["messages"][0]["content"] == "42\n"
        (record,) = open_court.records
    assert (trajectory.outcome, trajectory.reward, trajectory.detail) == (Outcome.COMPLETED, reward, "")
    assert (record["ending"], record["trial"], record["answer"]) == ("Answered", "t-7", words)


@pytest.mark.parametrize(("isolation", "refusal"), [("Auto", "not reached"), ("Plain", "refused 401")])
async def test_an_agent_that_asks_before_verification_is_refused_and_finds_no_key_or_token(
    host: TrialHost, tmp_path: Path, isolation: str, refusal: str
) -> None:
    async with court(tmp_path) as open_court:
        files = {"environment/files/gateway.txt": open_court.access.url}
        task = write_trial_task(tmp_path / "task", verifier=SHOW, files=files)
        request = judged(make_request(task, harness="tests.judge_harnesses:AskingTheJudge"), open_court)
        sandbox = SandboxSpec(provider="local", config={"isolation": isolation})
        trajectory = await host.run(replace(request, sandbox=sandbox))
        asked = [record["ending"] for record in open_court.records]
        assert open_court.service.bodies == []
    assert trajectory.outcome is Outcome.VERIFIER_FAILED, "the script only shows what it finds"
    shown = trajectory.detail.partition("output ends:\n")[2].splitlines()
    assert shown[:2] == [refusal, "[]"]
    assert sorted(shown[2:]) == ["0", "gateway.txt", "notes.txt", "tried.txt", "waiting.txt"], "nothing was stolen"
    assert asked == (["NotAllowed"] if isolation == "Plain" else [])


async def test_a_judge_that_fails_is_infrastructure_whatever_the_script_makes_of_it(
    host: TrialHost, tmp_path: Path
) -> None:
    task = write_trial_task(tmp_path / "task", verifier=ASK)
    async with court(tmp_path, reply=lambda _: web.Response(status=500)) as open_court:
        failing = await host.run(judged(make_request(task, mode=TrialMode.ORACLE), open_court))
        gone = replace(open_court.access, url="http://127.0.0.1:9")
        unreached = await host.run(replace(make_request(task, mode=TrialMode.ORACLE), judge=gone))
    assert (failing.outcome, failing.reward) == (Outcome.JUDGE_FAILED, None)
    assert "1 questions to the judge have no answer: no answer after 4 sends: fake/0: status 500" in failing.detail
    assert (unreached.outcome, unreached.reward) == (Outcome.JUDGE_FAILED, None)


async def test_a_task_that_would_pass_a_key_of_ours_on_gets_a_token_instead(host: TrialHost, tmp_path: Path) -> None:
    config = '[verifier.env]\nOPENAI_API_KEY = "${NO_SUCH_KEY_HERE}"\nJUDGE_MODEL = "other"'
    task = write_trial_task(tmp_path / "task", verifier=ASK, config=config)
    async with court(tmp_path) as open_court:
        trajectory = await host.run(judged(make_request(task, mode=TrialMode.ORACLE), open_court))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0)


async def test_a_verifier_that_does_not_ask_needs_no_judge(host: TrialHost, tmp_path: Path) -> None:
    task = write_trial_task(tmp_path / "task")
    async with court(tmp_path) as open_court:
        gone = replace(open_court.access, url="http://127.0.0.1:9")
        trajectory = await host.run(replace(make_request(task, mode=TrialMode.ORACLE), judge=gone))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.COMPLETED, 1.0)


def by_criterion(body: dict[str, Any]) -> str:
    """A judge that reads: passes what stands in the work."""
    text = body["messages"][1]["content"]
    wanted = text.rpartition(": ")[2]
    work = text.partition("<<<")[2].rpartition(">>>")[0]
    return json.dumps({"reasoning": f"looked for {wanted}", "passed": wanted in work})


def write_rubric_task(folder: Path) -> Path:
    criteria = [
        {"id": "answer", "text": "It is 42.", "weight": 2},
        {"id": "essay", "text": "The answer is 42.", "artifact": "*.md"},
        {"id": "poem", "text": "roses", "artifact": "*.md"},
        {"id": "table", "text": "cells", "artifact": "*.xlsx"},
    ]
    files = {"tests/rubric.json": json.dumps({"criteria": criteria})}
    write_trial_task(folder, files=files)
    (folder / "tests/test.sh").unlink()
    return folder


async def test_work_is_graded_by_a_rubric_over_the_final_answer_and_the_changed_files(
    host: TrialHost, tmp_path: Path
) -> None:
    task = write_rubric_task(tmp_path / "task")
    assert [found.name for found in load_task_set(TaskSet(source=Source(path=str(task))), tmp_path, tmp_path)]
    async with court(tmp_path, reply=by_criterion) as open_court:
        request = judged(make_request(task, harness="tests.judge_harnesses:WritingAnEssay"), open_court)
        trajectory = await host.run(request)
        asked = [body["messages"][1]["content"] for body in open_court.service.bodies]
    assert (trajectory.outcome, trajectory.detail) == (Outcome.COMPLETED, "")
    assert trajectory.scores == {"reward": 0.6, "answer": 1.0, "essay": 1.0, "poem": 0.0, "table": 0.0}
    assert len(asked) == 3, "nobody is asked about a table that is not there"
    assert "### changed: notes.txt\n[before]\nNothing to see here.\n" in asked[0]
    assert "### added: out/essay.md\nThe answer is 42.\n" in asked[0]


async def test_a_rubric_without_a_judge_or_a_verdict_gives_no_reward(host: TrialHost, tmp_path: Path) -> None:
    task = write_rubric_task(tmp_path / "task")
    nobody = await host.run(make_request(task, mode=TrialMode.NO_OP))
    async with court(tmp_path, reply=lambda _: "It looks fine to me.") as open_court:
        mumbling = await host.run(judged(make_request(task, mode=TrialMode.NO_OP), open_court))
    assert (nobody.outcome, nobody.reward) == (Outcome.VERIFIER_FAILED, None)
    assert "the run has no judge; set spec.judge" in nobody.detail
    assert (mumbling.outcome, mumbling.reward) == (Outcome.JUDGE_FAILED, None)
    assert "criterion answer: none of 10 replies is a verdict" in mumbling.detail


async def test_a_task_is_graded_by_a_script_or_by_a_rubric(tmp_path: Path) -> None:
    task = write_rubric_task(tmp_path / "task")
    (task / "tests/test.sh").write_text("true")
    with pytest.raises(InvalidInputError, match=r"has tests/test\.sh and tests/rubric\.json; grade by one"):
        load_task_set(TaskSet(source=Source(path=str(task))), tmp_path, tmp_path)
    (task / "tests/test.sh").unlink()
    (task / "tests/rubric.json").write_text('{"criteria": []}')
    with pytest.raises(InvalidInputError, match=r"tests/rubric\.json: criteria: List should have at least 1 item"):
        load_task_set(TaskSet(source=Source(path=str(task))), tmp_path, tmp_path)
