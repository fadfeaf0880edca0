"""A world of two domains that unlearn each other: what a batch holds of one, the other loses a little of."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import override

import pytest

from seatrial_api.spec.data import DifficultySchedule, Domain
from seatrial_trainer.scheduling.assembly import AssemblyRules
from seatrial_trainer.scheduling.sampler import SampledTask, Sampler
from seatrial_trainer.scheduling.scheduler import SchedulerSettings
from seatrial_trainer.scheduling.simulator import SimulationSpec, simulate
from seatrial_trainer.scheduling.workload import TrialShape, Workload

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


@dataclass(frozen=True, slots=True)
class LongSheets(Workload):
    """Every second task is one of sheets, and takes four times as long."""

    @override
    def shape(self, task: str, slot: int) -> TrialShape:
        longer = 1.0 if is_mail(task) else 4.0
        return Workload(self.seed, median_tokens=longer * self.median_tokens).shape(task, slot)


def is_mail(task: str) -> bool:
    return int(task[-1]) % 2 == 0


def shares_of_mail(*domains: str) -> list[float]:
    """Of each batch that the real scheduler makes, in virtual time and three steps stale."""
    stage = SchedulerSettings("train", AssemblyRules(2, min_valid=1), BATCH, max_staleness=3, num_steps=20)
    result = simulate(SimulationSpec(stage, domains=domains, workload=LongSheets()))
    return [fmean(is_mail(group.task) for group in batch.groups) for batch in result.batches]


def test_asynchronous_batches_keep_the_shares_once_what_was_admitted_at_first_is_trained() -> None:
    shares = shares_of_mail("mail", "sheets")
    assert shares[:4] == [1.0, 0.625, 0.375, 0.0], "short tasks end first"
    assert set(shares[4:]) == {0.5}
    assert pstdev(shares_of_mail()[4:]) > 0.1, "without domains shares never settle"
