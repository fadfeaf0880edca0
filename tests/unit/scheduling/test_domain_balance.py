"""A world of two domains that unlearn each other: what a batch holds of one, the other loses a little of."""

from collections.abc import Sequence
from statistics import fmean, pstdev

import pytest

from seatrial_api.spec.data import DifficultySchedule, Domain
from seatrial_trainer.scheduling.sampler import SampledTask, Sampler

BATCH, RATE = 8, 0.2


def tasks_of(mail: int, sheets: int) -> list[SampledTask]:
    return [
        SampledTask(f"{name}-{i}", name) for name, count in (("mail", mail), ("sheets", sheets)) for i in range(count)
    ]


def balanced(tasks: Sequence[SampledTask], seed: int) -> Sampler:
    return Sampler(tasks, [Domain(name="mail"), Domain(name="sheets")], seed=seed)


def skill_gaps(sampler: Sampler) -> list[float]:
    """Skill in mail less that in sheets after each batch, once the start is forgotten."""
    skill = {"mail": 0.5, "sheets": 0.5}
    gaps = []
    for _ in range(250):
        drawn = [sampler.draw().domain for _ in range(BATCH)]
        for name, known in list(skill.items()):
            share = drawn.count(name) / BATCH
            skill[name] = known + RATE * (share * (1 - known) - (1 - share) * known)
        gaps.append(skill["mail"] - skill["sheets"])
    return gaps[50:]


@pytest.mark.parametrize("seed", range(4))
def test_plain_sampling_see_saws_and_balanced_sampling_does_not(seed: int) -> None:
    tasks = tasks_of(mail=60, sheets=60)
    assert pstdev(skill_gaps(Sampler(tasks, seed=seed))) > 0.04
    assert pstdev(skill_gaps(balanced(tasks, seed))) < 0.01


@pytest.mark.parametrize("seed", range(4))
def test_a_domain_with_few_tasks_is_not_unlearned(seed: int) -> None:
    tasks = tasks_of(mail=100, sheets=20)
    assert fmean(skill_gaps(Sampler(tasks, seed=seed))) > 0.4
    assert abs(fmean(skill_gaps(balanced(tasks, seed)))) < 0.01


@pytest.mark.parametrize("seed", range(4))
def test_a_difficulty_schedule_spends_no_more_on_a_domain_that_is_mastered(seed: int) -> None:
    tasks = tasks_of(mail=12, sheets=12)
    schedule = DifficultySchedule(min_pass_rate=0.1, max_pass_rate=0.9)
    sampler = Sampler(tasks, [Domain(name="mail", difficulty=schedule), Domain(name="sheets")], seed=seed)
    for i in range(6):
        sampler.observe(f"mail-{i}", 1.0)
    drawn = [sampler.draw() for _ in range(240)]
    mastered = sum(task.name in {f"mail-{i}" for i in range(6)} for task in drawn)
    assert sum(task.domain == "mail" for task in drawn) == 120, "the domain keeps its share"
    assert 0.15 <= mastered / 120 <= 0.25, "a quarter of the weight of the six that are not: one draw in five"
