"""The plan of a run over its whole life, and that it comes to the same end wherever it is cut off."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial_api.conditions import RunPhase
from seatrial_api.playbook import ExitCode
from seatrial_api.stage_report import StageResult
from seatrial_api.status import Endpoints, HeadlineMetrics
from seatrial_operator.plan.observed import RESUME_ANNOTATION, Silent
from tests.run_world import Job, RunWorld

TRAIN = 1
"""Segment of the stages overfit and train; 0 is preflight and before, 2 is after."""


def world_in_segment(segment: int) -> RunWorld:
    """A world whose driver runs in this segment."""
    world = RunWorld.of()
    for _ in range(60):
        world.turn()
        world.reconcile()
        if world.status.segment == segment and world.status.current and world.jobs and world.job.driver:
            world.reconcile()
            return world
    raise AssertionError(world.status)


def test_a_run_whose_stages_pass_completes_and_leaves_nothing() -> None:
    world = RunWorld.of()
    world.live()
    assert world.reasons()["Complete"] == "True AllStagesPassed"
    assert world.status.phase is RunPhase.SUCCEEDED
    assert world.made == [(0, 0), (1, 0), (2, 0)]
    assert (world.jobs, world.secrets) == ({}, set())
    assert [row.result for row in world.status.stages] == [StageResult.PASSED] * 5
    assert world.status.observed_generation == 1
    assert (world.plan().actions, world.plan().removals) == ((), ())


def test_hold_run_keeps_one_cluster_for_all_stages() -> None:
    world = RunWorld.of(spec__topology={"nodes": 2, "gpusPerNode": 8, "hold": "Run"})
    world.live()
    assert world.made == [(0, 0)]
    assert world.status.phase is RunPhase.SUCCEEDED


def test_a_gate_that_fails_ends_the_run_and_releases_its_nodes() -> None:
    world = RunWorld.of()
    world.results = {"overfit": StageResult.GATE_FAILED}
    world.live()
    assert world.reasons()["Failed"] == "True GateFailed"
    assert "overfit" in next(one.message for one in world.status.conditions if one.type == "Failed")
    assert "Scheduled" not in world.reasons()
    assert world.jobs == {}
    assert world.made == [(0, 0), (1, 0)]


def test_the_resume_annotation_runs_a_failed_gate_anew_and_once() -> None:
    world = RunWorld.of()
    world.results = {"overfit": StageResult.GATE_FAILED}
    world.live()
    world.annotations[RESUME_ANNOTATION] = "1"
    world.reconcile()
    assert world.status.resumes
    world.passed.pop("overfit")  # the driver discards the report that it was asked to
    world.live()
    assert world.made == [(0, 0), (1, 0), (1, 1)]
    assert world.reasons()["Failed"] == "True GateFailed"
    world.results = {}
    world.annotations[RESUME_ANNOTATION] = "2"
    world.reconcile()
    world.passed.pop("overfit")
    world.live()
    assert world.reasons()["Failed"] == "False Resumed"
    assert world.status.phase is RunPhase.SUCCEEDED


@pytest.mark.parametrize(
    "ask",
    [
        lambda w: w.annotations.update({RESUME_ANNOTATION: "now"}),
        lambda w: w.edit(spec__guards={"maxLogprobDiff": 0.5}),
    ],
)
def test_a_guarded_run_waits_until_a_person_asks_or_changes_the_guards(ask: Callable[[RunWorld], None]) -> None:
    world = RunWorld.of()
    world.results = {"train": StageResult.GUARDED}
    world.live()
    assert world.status.phase is RunPhase.GUARDED
    assert (world.jobs, world.made) == ({}, [(0, 0), (1, 0)])
    world.edit(spec__async__concurrency=8)
    world.live(5)
    assert world.status.phase is RunPhase.GUARDED
    world.results = {}
    ask(world)
    world.live()
    assert world.reasons()["Guarded"] == "False Resumed"
    assert world.made == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert world.status.phase is RunPhase.SUCCEEDED


def delete_job(world: RunWorld) -> None:
    world.jobs.clear()


def replace_head(world: RunWorld) -> None:
    world.new_head(world.job)


def end_job(world: RunWorld) -> None:
    world.job.state, world.driver.is_silent = "Failed", True


def silence(world: RunWorld) -> None:
    world.driver.is_silent = True


def kill_rank(world: RunWorld) -> None:
    world.driver.ended, world.driver.message = ExitCode.FAILED, "rank 3 died"


def drain(world: RunWorld) -> None:
    world.driver.ended = ExitCode.INTERRUPTED


LOSSES = [delete_job, replace_head, end_job, silence, kill_rank, drain]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_lost_attempt_is_followed_by_the_next_after_a_wait(lose: Callable[[RunWorld], None]) -> None:
    world = world_in_segment(TRAIN)
    lose(world)
    world.reconcile()
    assert world.status.current is None
    assert world.status.failures == 1
    assert world.reasons()["Scheduled"] == "False NodesLost"
    assert world.status.retry_at == world.now + timedelta(seconds=10)
    for _ in range(4):
        world.turn(1)
        world.reconcile()
    assert world.made == [(0, 0), (1, 0)]
    world.live()
    assert world.made == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert world.status.phase is RunPhase.SUCCEEDED
    assert world.status.failures == 0


def test_a_driver_that_is_silent_for_long_is_told_and_one_that_answers_again_is_taken_at_its_word() -> None:
    world = world_in_segment(TRAIN)
    seen = world.observe()
    world.observe = lambda: replace(seen, driver=Silent(29, "timeout"))  # type: ignore[method-assign]  # one look
    world.reconcile()
    assert world.reasons()["Progressing"] == "True StageRunning"
    world.observe = lambda: replace(seen, driver=Silent(30, "timeout"))  # type: ignore[method-assign]  # one look
    world.reconcile()
    assert world.reasons()["Progressing"] == "False Unreachable"
    assert world.told[-1].message == "the driver does not answer: timeout"
    world.observe = lambda: seen  # type: ignore[method-assign]  # one look
    world.reconcile()
    assert world.reasons()["Progressing"] == "True StageRunning"


def test_the_wait_doubles_and_the_attempts_end_at_the_bound() -> None:
    world = RunWorld.of(spec__backoffLimit=2)
    waits = []
    for _ in range(200):
        world.turn(1)
        if world.jobs and world.job.driver:
            world.job.state, world.driver.is_silent = "Failed", True
        before = world.status.failures
        world.reconcile()
        if world.status.failures > before and world.status.retry_at:
            waits.append((world.status.retry_at - world.now).total_seconds())
    assert waits == [10, 20, 40]
    assert world.made == [(0, 0), (0, 1), (0, 2)]
    assert world.reasons()["Failed"] == "True AttemptsExhausted"
    assert "backoffLimit is 2" in world.told[-1].message
    world.annotations[RESUME_ANNOTATION] = "again"
    world.live()
    assert world.status.phase is RunPhase.SUCCEEDED


def test_input_that_has_to_be_changed_is_not_tried_again() -> None:
    world = world_in_segment(0)
    world.driver.ended, world.driver.message = ExitCode.INVALID, "spec.model.source: no such folder"
    world.live()
    assert world.reasons()["Failed"] == "True StageFailed"
    assert world.made == [(0, 0)]


def test_a_stage_that_only_a_person_can_help_is_not_tried_again() -> None:
    world = world_in_segment(TRAIN)
    world.driver.results, world.driver.needs_change = dict.fromkeys(world.driver.stages, StageResult.FAILED), True
    world.live()
    assert world.reasons()["Failed"] == "True StageFailed"
    assert len([job for job in world.made if job[0] == TRAIN]) == 1


def test_suspension_lets_the_driver_write_a_checkpoint_and_resumption_goes_on() -> None:
    world = world_in_segment(TRAIN)
    world.edit(spec__suspend=True)
    world.reconcile()
    assert world.driver.is_stopping
    assert world.jobs, "nodes are held until the checkpoint is written"
    world.live(4)
    assert world.status.phase is RunPhase.SUSPENDED
    assert world.reasons()["Suspended"] == "True UserRequest"
    assert (world.jobs, world.secrets, world.status.failures) == ({}, set(), 0)
    world.edit()
    world.live()
    assert world.reasons()["Suspended"] == "False Resumed"
    assert world.status.phase is RunPhase.SUCCEEDED
    assert world.made == [(0, 0), (1, 0), (1, 1), (2, 0)]


def test_a_driver_that_does_not_stop_in_its_grace_loses_its_nodes() -> None:
    world = world_in_segment(TRAIN)
    world.timing = world.timing.__class__(stop_grace_seconds=100, silence_seconds=1e9)
    world.driver.is_silent = True
    world.edit(spec__suspend=True)
    world.reconcile()
    world.now += timedelta(seconds=99)
    world.reconcile()
    assert world.jobs
    world.now += timedelta(seconds=1)
    world.reconcile()
    world.live(3)
    assert world.jobs == {}
    assert world.status.phase is RunPhase.SUSPENDED


def test_a_run_without_nodes_tells_of_no_cluster_and_of_no_trial_in_flight() -> None:
    world = world_in_segment(TRAIN)
    links = Endpoints(dashboard="http://d", progress="http://p", metrics="http://m", report="/run/report.html")
    figures = HeadlineMetrics(reward=0.5, trials_in_flight=32)
    world.status = world.status.model_copy(update={"endpoints": links, "metrics": figures})
    world.driver.is_silent = True
    world.job.state = "Failed"
    world.reconcile()
    assert world.reasons()["Scheduled"] == "False NodesLost"
    assert world.status.endpoints == Endpoints(report="/run/report.html")
    assert world.status.metrics == HeadlineMetrics(reward=0.5, trials_in_flight=0)


def test_a_run_that_is_made_suspended_starts_nothing() -> None:
    world = RunWorld.of(spec__suspend=True)
    world.live(3)
    assert (world.status.phase, world.made) == (RunPhase.SUSPENDED, [])


def test_a_changed_stage_that_the_driver_was_given_starts_the_segment_again() -> None:
    world = world_in_segment(TRAIN)
    world.edit(spec__stages__3__train__steps=40)
    world.reconcile()
    assert world.driver.is_stopping
    world.live()
    assert world.made == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert world.status.failures == 0


def test_a_changed_stage_of_a_later_segment_disturbs_nobody() -> None:
    world = world_in_segment(TRAIN)
    world.edit(spec__stages__4__evaluate__passes=3)
    world.live()
    assert world.made == [(0, 0), (1, 0), (2, 0)]


def test_live_settings_reach_the_driver_once() -> None:
    world = world_in_segment(TRAIN)
    assert world.driver.settings is None
    world.edit(spec__async__concurrency=8)
    world.reconcile()
    assert world.driver.settings is not None
    assert world.driver.settings.concurrency == 8
    assert world.told[-1].reason == "SettingsApplied"
    world.driver.settings = None
    world.reconcile()
    assert world.driver.settings is None
    assert world.made == [(0, 0), (1, 0)]


def test_an_invalid_spec_is_told_and_starts_nothing() -> None:
    world = RunWorld.of()
    world.problems = ("spec.sandbox.provider: no broker; choose local",)
    world.live(3)
    assert world.reasons() == {"Accepted": "False InvalidSpec"}
    assert world.made == []
    world.problems = ()
    world.missing = ("spec.storage.pvc.claim: there is no PersistentVolumeClaim team/runs; create it",)
    world.live(3)
    assert world.reasons() == {"Accepted": "False MissingReference"}
    world.missing = ()
    world.live()
    assert world.status.phase is RunPhase.SUCCEEDED


def test_what_the_cluster_refuses_to_make_is_told_and_asked_for_again() -> None:
    world = RunWorld.of()
    world.refused = "create rayjobs: HTTP 403 exceeded quota"
    world.reconcile()
    assert world.reasons()["Scheduled"] == "False Refused"
    assert world.status.current is None
    world.refused = ""
    world.live()
    assert world.status.phase is RunPhase.SUCCEEDED


def test_a_queue_that_takes_the_nodes_back_costs_no_attempt() -> None:
    world = world_in_segment(TRAIN)
    world.job.is_suspended, world.job.driver, world.job.head = True, None, ""
    world.turn()
    world.reconcile()
    assert world.reasons()["Scheduled"] == "False Queued"
    assert world.status.phase is RunPhase.QUEUED
    world.job.is_suspended = False
    world.live()
    assert world.made == [(0, 0), (1, 0), (2, 0)]
    assert world.status.phase is RunPhase.SUCCEEDED


def test_a_finished_run_goes_when_its_time_is_over() -> None:
    world = RunWorld.of(spec__ttlSecondsAfterFinished=3600)
    world.live()
    assert not world.is_deleted
    assert world.plan().next_look_seconds <= 3600
    world.now += timedelta(hours=1)
    world.reconcile()
    assert world.is_deleted


def test_a_namesakes_leftovers_are_waited_for_and_not_taken_over() -> None:
    world = RunWorld.of()
    left = Job("", [], "Running", "old-head")
    world.jobs[0, 0] = left
    seen = world.observe()
    foreign = replace(seen.jobs[0], is_ours=False)
    world.observe = lambda: replace(seen, jobs=(foreign,))  # type: ignore[method-assign]  # one look
    assert world.plan().actions == ()
    assert world.plan().status.current is None


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    world = world_in_segment(TRAIN)
    times = {one.type: one.last_transition_time for one in world.status.conditions}
    world.now += timedelta(minutes=5)
    world.edit(spec__cost={"nodeHour": 3})
    world.reconcile()
    assert {one.type: one.last_transition_time for one in world.status.conditions} == times
    assert {one.observed_generation for one in world.status.conditions} == {2}


def test_the_status_says_that_local_sandboxes_do_not_isolate() -> None:
    world = RunWorld.of()
    world.reconcile()
    assert world.status.sandbox == "local, not isolated"


def test_the_events_tell_the_story_in_order() -> None:
    world = RunWorld.of()
    world.live()
    assert [story.reason for story in world.told] == [
        "SpecValid",
        "AttemptStarted",
        "StageStarted",
        "StagePassed",
        "StageStarted",
        "StagePassed",
        "AttemptStarted",
        "StageStarted",
        "StagePassed",
        "StageStarted",
        "StagePassed",
        "AttemptStarted",
        "StageStarted",
        "StagePassed",
        "AllStagesPassed",
    ]


ENDS = {
    "passes": ({}, RunPhase.SUCCEEDED),
    "gate": ({"overfit": StageResult.GATE_FAILED}, RunPhase.FAILED),
    "guard": ({"train": StageResult.GUARDED}, RunPhase.GUARDED),
}


@given(
    end=st.sampled_from(sorted(ENDS)),
    cuts=st.lists(st.integers(0, 6), max_size=40),
    losses=st.lists(st.tuples(st.integers(0, 30), st.sampled_from(LOSSES)), max_size=4),
)
def test_wherever_the_operator_dies_the_run_comes_to_the_same_end(
    end: str, cuts: list[int], losses: list[tuple[int, Callable[[RunWorld], None]]]
) -> None:
    results, phase = ENDS[end]
    world = RunWorld.of()
    world.results = results
    when = dict(losses)
    for round_ in range(200):
        world.turn()
        if round_ in when and world.jobs and world.job.driver and not world.job.is_deleting:
            when[round_](world)
        if round_ < len(cuts):
            world.reconcile(cut_after=cuts[round_])
        world.reconcile()
    assert world.status.phase is phase
    assert (world.jobs, world.secrets) == ({}, set())
    assert len(set(world.made)) == len(world.made)
    assert (world.plan().actions, world.plan().removals) == ((), ())
    assert world.plan().status == world.status
