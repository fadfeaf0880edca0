from collections import Counter

import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.data import DifficultySchedule, Domain
from seatrial_trainer.scheduling.sampler import SampledTask, Sampler, SamplerState


def tasks_of(**counts: int) -> list[SampledTask]:
    return [SampledTask(f"{domain}-{number}", domain) for domain, count in counts.items() for number in range(count)]


def draw(sampler: Sampler, count: int) -> list[str]:
    return [sampler.draw().name for _ in range(count)]


def test_an_epoch_visits_every_task_once_and_each_epoch_has_an_order_of_its_own() -> None:
    sampler = Sampler(tasks_of(office=20), seed=1)

    first, second = draw(sampler, 20), draw(sampler, 20)

    assert sorted(first) == sorted(second)
    assert len(set(first)) == 20
    assert first != second


def test_order_depends_on_the_seed_and_not_on_the_order_of_the_list() -> None:
    tasks = tasks_of(office=20)

    assert draw(Sampler(tasks, seed=1), 20) == draw(Sampler(tasks[::-1], seed=1), 20)
    assert draw(Sampler(tasks, seed=1), 20) != draw(Sampler(tasks, seed=2), 20)


def test_domains_keep_their_shares_over_any_stretch() -> None:
    domains = [Domain(name="mail", weight=3.0), Domain(name="sheets", weight=1.0)]
    sampler = Sampler(tasks_of(mail=2, sheets=50), domains)

    drawn = [sampler.draw().domain for _ in range(400)]

    for stop in range(4, 401, 4):
        assert abs(drawn[:stop].count("mail") - 0.75 * stop) <= 1


def test_a_task_outside_its_pass_rate_bounds_is_drawn_at_a_quarter_of_its_weight() -> None:
    level = DifficultySchedule(min_pass_rate=0.1, max_pass_rate=0.9)
    sampler = Sampler(tasks_of(office=4), [Domain(name="office", difficulty=level)])
    sampler.observe("office-0", 1.0)
    sampler.observe("office-1", 0.0)
    sampler.observe("office-2", 0.5)

    counts = Counter(draw(sampler, 250))

    assert counts == {"office-0": 25, "office-1": 25, "office-2": 100, "office-3": 100}


def test_drawing_goes_on_when_every_task_is_outside_its_bounds() -> None:
    level = DifficultySchedule(max_pass_rate=0.5)
    sampler = Sampler(tasks_of(office=3), [Domain(name="office", difficulty=level)])
    for number in range(3):
        sampler.observe(f"office-{number}", 1.0)

    assert Counter(draw(sampler, 30)) == {f"office-{number}": 10 for number in range(3)}


def test_a_restored_sampler_draws_what_the_saved_one_would_have_drawn() -> None:
    domains = [Domain(name="mail", difficulty=DifficultySchedule(max_pass_rate=0.5)), Domain(name="sheets", weight=2)]
    tasks = tasks_of(mail=7, sheets=5)
    sampler = Sampler(tasks, domains, seed=3)
    draw(sampler, 23)
    sampler.observe("mail-1", 1.0)
    sampler.put_back("sheets-2")
    sampler.retire("mail-3")
    saved = sampler.state().model_dump_json()

    resumed = Sampler(tasks, domains, seed=3)
    resumed.restore(SamplerState.model_validate_json(saved))

    assert draw(resumed, 60) == draw(sampler, 60)


def test_looking_ahead_draws_nothing() -> None:
    sampler = Sampler(tasks_of(office=5), seed=4)
    draw(sampler, 3)

    ahead = [task.name for task in sampler.peek(8)]

    assert draw(sampler, 8) == ahead


def test_a_task_that_was_put_back_goes_first() -> None:
    sampler = Sampler(tasks_of(office=5))
    sampler.put_back("office-4")

    assert sampler.draw() == SampledTask("office-4", "office")


def test_a_retired_task_is_never_drawn_again() -> None:
    sampler = Sampler(tasks_of(office=3))
    sampler.put_back("office-1")
    sampler.retire("office-1")
    sampler.put_back("office-1")

    assert "office-1" not in draw(sampler, 12)


def test_a_sampler_without_a_task_left_says_so() -> None:
    sampler = Sampler(tasks_of(office=1))
    sampler.retire("office-0")

    with pytest.raises(InvalidInputError, match="every task turned out to be broken"):
        sampler.draw()


def test_a_domain_whose_tasks_are_all_retired_leaves_its_share_to_the_others() -> None:
    sampler = Sampler(tasks_of(mail=1, sheets=2), [Domain(name="mail"), Domain(name="sheets")])
    sampler.retire("mail-0")

    assert set(draw(sampler, 6)) == {"sheets-0", "sheets-1"}


@pytest.mark.parametrize(
    ("domains", "sentence"),
    [
        ([Domain(name="mail")], r"tasks belong to \['sheets'\]"),
        ([Domain(name="mail"), Domain(name="sheets"), Domain(name="docs")], r"no training task belongs to \['docs'\]"),
    ],
)
def test_domains_that_do_not_match_the_tasks_are_refused(domains: list[Domain], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        Sampler(tasks_of(mail=1, sheets=1), domains)


def test_no_task_at_all_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no task to draw"):
        Sampler([])
