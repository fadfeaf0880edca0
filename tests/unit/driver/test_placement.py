import pytest

from seatrial_api.errors import InvalidInputError, WaitTimeoutError
from seatrial_api.pods import Role
from seatrial_trainer.driver.placement import Placement, require_gpus
from seatrial_trainer.scheduling.virtual_time import LoopClock, run_in_virtual_time

CLOCK = LoopClock()


def test_without_pods_nothing_is_waited_for_and_everything_may_run_anywhere() -> None:
    placement = Placement(None)
    assert placement.missing({}) == ""
    assert placement.options(Role.ROLLOUT) == {}


def test_pods_that_have_not_joined_are_named_with_their_number() -> None:
    placement = Placement({Role.ROLLOUT: 4, Role.TRAIN: 2, Role.AGENTS: 1})
    offered = {"CPU": 8.0, "seatrial_rollout": 3.0, "seatrial_agents": 1.0}
    assert placement.missing(offered) == "rollout (3 of 4 are there), train (0 of 2 are there)"


def test_the_driver_goes_on_as_soon_as_the_last_pod_is_there() -> None:
    told: list[str] = []

    def offered() -> dict[str, float]:
        return {"seatrial_agents": min(2.0, CLOCK.now() // 30)}

    async def wait() -> float:
        started = CLOCK.now()
        await Placement({Role.AGENTS: 2}).wait(offered, told.append, CLOCK)
        return CLOCK.now() - started

    assert run_in_virtual_time(wait()) == pytest.approx(60, abs=1)
    assert list(dict.fromkeys(told)) == [
        "waiting for pods to join: agents (0 of 2 are there)",
        "waiting for pods to join: agents (1 of 2 are there)",
    ]


def test_pods_are_not_waited_for_for_ever() -> None:
    waiting = Placement({Role.TRAIN: 1}).wait(dict, lambda _: None, CLOCK)
    with pytest.raises(WaitTimeoutError, match=r"waiting for pods to join: train \(0 of 1 are there\)"):
        run_in_virtual_time(waiting)


def test_more_pods_than_were_asked_for_do_no_harm() -> None:
    assert Placement({Role.ROLLOUT: 1}).missing({"seatrial_rollout": 2.0, "seatrial_train": 1.0}) == ""


def test_a_process_asks_for_so_little_of_a_pod_that_any_number_fits() -> None:
    options = Placement({Role.ROLLOUT: 1}).options(Role.ROLLOUT)
    assert options["scheduling_strategy"] == "SPREAD"
    assert options["resources"].keys() == {"seatrial_rollout"}
    assert 1000 * options["resources"]["seatrial_rollout"] <= 1


@pytest.mark.parametrize("offered", [{}, {"GPU": 7.0}])
def test_gpus_that_are_not_there_are_refused_with_the_field(offered: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=r"spec\.topology\.gpusPerNode: 8 wanted and [07] found"):
        require_gpus(8, offered)


@pytest.mark.parametrize(("wanted", "found"), [(0, 0.0), (0, 8.0), (8, 8.0), (8, 16.0)])
def test_gpus_that_are_there_are_taken(wanted: int, found: float) -> None:
    require_gpus(wanted, {"GPU": found})
