"""The gateway between a verifier and providers, all over real HTTP."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web

from seatrial_api.spec.judge import JudgeBudget, JudgeProvider, JudgeRetries
from seatrial_rollout.judge.client import Verification
from seatrial_rollout.judge.dispatcher import retry_after
from seatrial_rollout.judge.errors import NoVerdictError
from seatrial_rollout.judge.tokens import JudgeAccess, SigningKey
from seatrial_rollout.judge.wire import COMPLETIONS
from tests.judge_provider import JudgeService, provider
from tests.judges import RUN, Verifier, judge, said
from tests.leftovers import eventually


def records(audit: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit.read_text().splitlines() if line]


def failing(*statuses: int, **headers: str) -> Any:
    """Replies with these statuses, one after the other, then answers."""
    left = list(statuses)

    def reply(_: dict[str, Any]) -> str | web.Response:
        return web.json_response({"error": "no"}, status=left.pop(0), headers=headers) if left else "yes"

    return reply


@pytest.mark.parametrize("api", ["OpenAI", "Anthropic"])
async def test_a_verifier_is_answered_in_openais_words_by_any_provider(api: str, tmp_path: Path) -> None:
    async with (
        JudgeService().serve() as service,
        judge(provider(service.url, api=api, price=2.0), audit=tmp_path / "audit.jsonl") as verifier,
    ):
        status, content = await verifier.ask("Is it?", temperature=0.5, stop="END")
        assert (status, said(content), content["model"]) == (200, "yes", "judge")
        assert content["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        assert service.keys_used == ["fake_key_0"]
    (record,) = records(tmp_path / "audit.jsonl")
    assert (record["ending"], record["trial"], record["answer"]) == ("Answered", "trial-1", "yes")
    usage = {"requests": 1, "prompt_tokens": 10, "completion_tokens": 5, "dollars": pytest.approx(3e-5)}
    assert record["usage"] == usage
    assert [(sent["key"], sent["status"]) for sent in record["sends"]] == [("fake/0", 200)]
    assert "fake_key_0" not in (tmp_path / "audit.jsonl").read_text()


async def test_a_conversation_is_told_to_anthropic_as_it_wants_it(tmp_path: Path) -> None:
    async with (
        JudgeService().serve() as service,
        judge(provider(service.url, api="Anthropic"), audit=tmp_path / "audit.jsonl") as verifier,
    ):
        parts = [{"type": "text", "text": "Is "}, {"type": "text", "text": "it?"}]
        messages = [{"role": "system", "content": "Be just."}, {"role": "user", "content": parts}]
        await verifier.ask(messages=messages, temperature=0.5, stop="END", seed=1)
        assert service.bodies == [
            {
                "model": "judge",
                "max_tokens": 100,
                "messages": [{"role": "user", "content": "Is it?"}],
                "system": "Be just.",
                "stop_sequences": ["END"],
                "temperature": 0.5,
            }
        ]


async def test_nobody_is_answered_without_a_token_of_this_run_and_phase(tmp_path: Path) -> None:
    async with JudgeService().serve() as service, judge(provider(service.url), audit=tmp_path / "a") as verifier:
        access = verifier.access
        stranger = JudgeAccess(RUN, access.url, SigningKey.generate(), "judge", 1, JudgeBudget())
        elsewhere = JudgeAccess("run-2", access.url, access.signing_key, "judge", 1, JudgeBudget())
        claims = jwt.decode(access.token("trial-1", "v", 60), options={"verify_signature": False})
        agent = jwt.encode({**claims, "phase": "Agent"}, access.signing_key.private_pem, algorithm="EdDSA")
        tokens = ["", "nonsense", stranger.token("trial-1", "v", 60), elsewhere.token("trial-1", "v", 60), agent]
        tokens.append(access.token("trial-1", "v", -1))
        for token in tokens:
            headers = {"Authorization": f"Bearer {token}"}
            async with verifier.session.post(access.url + COMPLETIONS, json={}, headers=headers) as response:
                assert (response.status, response.headers["x-should-retry"]) == (401, "false")
        assert service.bodies == []
    assert [record["ending"] for record in records(tmp_path / "a")] == ["NotAllowed"] * len(tokens)


async def test_a_service_that_fails_is_asked_again(tmp_path: Path) -> None:
    async with (
        JudgeService(reply=failing(500, 503, 529)).serve() as service,
        judge(provider(service.url, num_keys=3), audit=tmp_path / "a") as verifier,
    ):
        assert (await verifier.ask())[0] == 200
        assert service.keys_used == ["fake_key_0", "fake_key_1", "fake_key_2", "fake_key_0"]
        assert await verifier.verification() == {"answered": 1, "unanswered": []}


async def test_a_key_rests_as_long_as_the_provider_asks_while_others_go_on(tmp_path: Path) -> None:
    async with (
        JudgeService(reply=failing(429, **{"Retry-After": "300"})).serve() as service,
        judge(provider(service.url, num_keys=2), audit=tmp_path / "a") as verifier,
    ):
        for number in range(3):
            assert (await verifier.ask(f"question {number}"))[0] == 200
        assert service.keys_used == ["fake_key_0", "fake_key_1", "fake_key_1", "fake_key_1"]


async def test_a_key_that_is_refused_is_not_used_again(tmp_path: Path) -> None:
    async with (
        JudgeService(reply=failing(401)).serve() as service,
        judge(provider(service.url, num_keys=2), audit=tmp_path / "a") as verifier,
    ):
        for number in range(3):
            assert (await verifier.ask(f"question {number}"))[0] == 200
        assert service.keys_used == ["fake_key_0", "fake_key_1", "fake_key_1", "fake_key_1"]


async def test_a_key_that_a_provider_repeats_reaches_neither_sandbox_nor_log(tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> web.Response:
        status = 400 if body["messages"][0]["content"] == "bad" else 500
        return web.json_response({"error": "key fake_key_0 is odd"}, status=status)

    async with (
        JudgeService(reply=reply).serve() as service,
        judge(provider(service.url), audit=tmp_path / "a", log_questions=True) as verifier,
    ):
        answers = [await verifier.ask("bad"), await verifier.ask("good")]
    assert [status for status, _ in answers] == [400, 503]
    assert "key *** is odd" in str(answers[0])
    assert "fake_key_0" not in f"{answers}{(tmp_path / 'a').read_text()}"


async def test_another_provider_of_the_model_stands_in_for_one_that_is_down(tmp_path: Path) -> None:
    async with JudgeService().serve() as service:
        down = provider("http://127.0.0.1:9/v1", name="down")
        async with judge(down, provider(service.url, api="Anthropic"), audit=tmp_path / "a") as verifier:
            answers = [await verifier.ask(f"question {number}") for number in range(20)]
        assert [status for status, _ in answers] == [200] * 20
    sends = [sent for record in records(tmp_path / "a") for sent in record["sends"] if sent["key"] == "down/0"]
    assert 5 <= len(sends) < 20, "its breaker opens"


async def test_a_question_without_an_answer_is_told_to_the_trial_until_it_has_one(tmp_path: Path) -> None:
    service = JudgeService(reply=failing(*[500] * 4))
    async with service.serve(), judge(provider(service.url), audit=tmp_path / "a") as verifier:
        status, content = await verifier.ask()
        assert (status, content["error"]["type"]) == (503, "judge_unavailable")
        assert "no answer after 4 sends: fake/0: status 500" in content["error"]["message"]
        assert len((await verifier.verification())["unanswered"]) == 1
        assert (await verifier.ask())[0] == 200
        assert await verifier.verification() == {"answered": 1, "unanswered": []}
    assert [record["ending"] for record in records(tmp_path / "a")] == ["NoVerdict", "Answered"]


async def test_a_trial_that_is_tried_again_begins_anew(tmp_path: Path) -> None:
    service = JudgeService(reply=failing(*[500] * 4))
    async with (
        service.serve(),
        judge(provider(service.url), audit=tmp_path / "a", trial_budget=JudgeBudget(requests=1)) as verifier,
    ):
        body = {"model": "judge", "messages": [{"role": "user", "content": "first"}]}
        first, again = [Verification.begin(verifier.access, "trial-1", 60) for _ in range(2)]
        with pytest.raises(NoVerdictError, match="status 503"):
            await first.ask(verifier.session, body)
        body["messages"] = [{"role": "user", "content": "second"}]
        assert await again.ask(verifier.session, body) == "yes"
        await again.check()
        with pytest.raises(NoVerdictError, match="1 questions to the judge have no answer"):
            await first.check()


async def test_a_client_that_did_not_wait_for_its_answer_has_none(tmp_path: Path) -> None:
    async with (
        JudgeService(answer_seconds=60.0).serve() as service,
        judge(provider(service.url), audit=tmp_path / "a") as verifier,
    ):
        async with asyncio.TaskGroup() as group:
            impatient = group.create_task(verifier.ask())
            await eventually(lambda: bool(service.bodies), what="the question to be under way")
            impatient.cancel()
        assert await verifier.verification() == {"answered": 0, "unanswered": ["it is still under way"]}


async def test_a_gateway_that_came_later_cannot_tell_what_the_one_before_owed(tmp_path: Path) -> None:
    async with JudgeService().serve() as service, judge(provider(service.url), audit=tmp_path / "a") as verifier:
        verification = Verification.begin(verifier.access, "trial-1", 60)
        await verification.check()
        with pytest.raises(NoVerdictError, match="the judge's gateway was replaced meanwhile"):
            await replace(verification, began_at=verification.began_at - 3600).check()


async def test_an_answer_that_is_none_counts_as_a_failure(tmp_path: Path) -> None:
    service = JudgeService(reply=lambda _: web.json_response({"choices": []}))
    async with service.serve(), judge(provider(service.url), audit=tmp_path / "a") as verifier:
        status, content = await verifier.ask()
    assert status == 503
    assert "no chat completion" in content["error"]["message"]


async def test_a_fault_of_the_question_is_the_askers_own(tmp_path: Path) -> None:
    service = JudgeService(reply=failing(400))
    async with service.serve(), judge(provider(service.url), audit=tmp_path / "a") as verifier:
        assert await verifier.ask() == (400, {"error": "no"})
        assert (await verifier.ask("other", stream=True))[0] == 400
        assert (await verifier.ask("other", model="gpt"))[0] == 400
        assert (await verifier.ask(messages="no list"))[0] == 400
        assert len(service.bodies) == 1
        assert await verifier.verification() == {"answered": 0, "unanswered": []}


async def test_equal_questions_are_asked_once_even_at_the_same_time(tmp_path: Path) -> None:
    async with (
        JudgeService(answer_seconds=0.05).serve() as service,
        judge(provider(service.url), audit=tmp_path / "a") as verifier,
        asyncio.TaskGroup() as group,
    ):
        same = [group.create_task(verifier.ask("same")) for _ in range(5)]
        other = [group.create_task(verifier.ask("same", seed=seed)) for seed in range(2)]
        assert {(await task)[0] for task in [*same, *other]} == {200}
        assert len(service.bodies) == 3
    endings = sorted(record["ending"] for record in records(tmp_path / "a"))
    assert endings == ["Answered"] * 3 + ["Cached"] * 4


async def test_no_answer_is_kept_if_none_is_to_be(tmp_path: Path) -> None:
    async with (
        JudgeService().serve() as service,
        judge(provider(service.url), audit=tmp_path / "a", cache_entries=0) as verifier,
    ):
        await verifier.ask()
        await verifier.ask()
        assert len(service.bodies) == 2


async def test_a_spent_budget_refuses_but_the_cache_is_free(tmp_path: Path) -> None:
    async with (
        JudgeService().serve() as service,
        judge(provider(service.url), audit=tmp_path / "a", trial_budget=JudgeBudget(requests=1)) as verifier,
    ):
        assert (await verifier.ask("first"))[0] == 200
        status, content = await verifier.ask("second")
        assert (status, content["error"]["type"]) == (402, "insufficient_quota")
        assert (await verifier.ask("first"))[0] == 200
        verifier.trial = "trial-2"
        assert (await verifier.ask("second"))[0] == 200
        assert await verifier.verification() == {"answered": 1, "unanswered": []}


async def test_a_resumed_run_remembers_what_it_has_used_up(tmp_path: Path) -> None:
    audit, budget = tmp_path / "audit.jsonl", JudgeBudget(requests=2)
    async with JudgeService().serve() as service:
        made = provider(service.url)
        async with judge(made, audit=audit, run_budget=budget) as verifier:
            assert (await verifier.ask("first"))[0] == 200
        with audit.open("a") as log:
            log.write('{"ending": "Answered", "usa')  # the process was killed in the middle of a line
        async with judge(made, audit=audit, run_budget=budget) as verifier:
            assert (await verifier.ask("second"))[0] == 200
            assert (await verifier.ask("third"))[0] == 402
        async with judge(made, audit=audit, run_budget=budget) as verifier:
            assert verifier.gateway is not None
            assert verifier.gateway.used.requests == 2


async def test_a_question_that_cannot_be_answered_in_time_is_given_up_before_the_verifiers_deadline(
    tmp_path: Path,
) -> None:
    async with (
        JudgeService(answer_seconds=30.0).serve() as service,
        judge(provider(service.url, concurrency=1), audit=tmp_path / "a") as verifier,
        asyncio.TaskGroup() as group,
    ):
        verifier.seconds = 5.0
        tasks = [group.create_task(verifier.ask(f"question {number}")) for number in range(2)]
        answers = [await task for task in tasks]
    assert [status for status, _ in answers] == [503, 503]
    assert "no key was free in time" in answers[1][1]["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "-1"}, 0.0),
        ({"Retry-After": "1e9"}, 3600.0),
        ({"Retry-After": "7", "retry-after-ms": "250"}, 0.25),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:10 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 10.0),
        ({"Retry-After": "soon"}, None),
    ],
)
def test_what_a_provider_asks_to_wait_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


async def many_verdicts(made: JudgeProvider, audit: Path, count: int) -> list[tuple[int, dict[str, Any]]]:
    async with judge(made, audit=audit, retries=JudgeRetries()) as verifier, asyncio.TaskGroup() as group:
        askers = [Verifier(verifier.access, verifier.session, trial=f"trial-{number // 8}") for number in range(count)]
        tasks = [group.create_task(asker.ask(f"question {number}")) for number, asker in enumerate(askers)]
        return [await task for task in tasks]


async def test_no_verdict_is_lost_and_no_key_goes_over_its_limits(tmp_path: Path) -> None:
    limits = {"requests": 30, "window_seconds": 1.0, "concurrency": 8}
    service = JudgeService(answer_seconds=0.02, reply=lambda body: body["messages"][0]["content"], **limits)
    async with service.serve():
        answers = await many_verdicts(provider(service.url, num_keys=3, **limits), tmp_path / "a", 200)
    assert [(status, said(content)) for status, content in answers] == [
        (200, f"question {number}") for number in range(200)
    ]
    assert (service.over_limit, service.too_many_at_once) == (0, 0)
    assert max(service.most_in_window.values()) <= 30
    assert max(service.most_at_once.values()) <= 8
    assert min(service.keys_used.count(f"fake_key_{number}") for number in range(3)) > 40
