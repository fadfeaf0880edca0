"""Which engine a trial talks to."""

from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.engine.router import Router


def addresses(*names: str) -> list[EngineAddress]:
    return [EngineAddress(name, f"http://{name}", "token") for name in names]


def test_trials_spread_over_engines() -> None:
    router = Router(addresses("a", "b", "c"))

    for trial in range(7):
        router.assign(f"trial-{trial}")

    assert router.load() == {"a": 3, "b": 2, "c": 2}


def test_a_trial_keeps_its_engine_however_the_load_changes() -> None:
    router = Router(addresses("a", "b"))
    first = router.assign("sticky")[0]
    for trial in range(5):
        router.assign(f"other-{trial}")

    assert router.assign("sticky")[0] == first


def test_fall_backs_come_least_loaded_first() -> None:
    router = Router(addresses("a", "b", "c"))
    for trial in ("1", "2", "3", "4"):
        router.assign(trial)  # a has two, b and c one each
    router.release("2")  # of b

    assert [address.engine_id for address in router.assign("1")] == ["a", "b", "c"]


def test_a_released_trial_frees_its_engine() -> None:
    router = Router(addresses("a", "b"))
    router.assign("1")
    router.assign("2")

    router.release("1")
    router.release("1")

    assert router.assign("3")[0].engine_id == "a"


def test_trials_of_a_lost_engine_move_and_the_others_stay() -> None:
    router = Router(addresses("a", "b"))
    router.assign("on-a")
    router.assign("on-b")

    router.update(addresses("b", "c"))

    assert router.assign("on-a")[0].engine_id == "c"
    assert router.assign("on-b")[0].engine_id == "b"


def test_a_replacement_of_the_same_name_is_reached_at_its_new_address() -> None:
    router = Router(addresses("a"))
    router.assign("trial")

    router.update([EngineAddress("a", "http://elsewhere", "token")])

    assert router.assign("trial")[0].url == "http://elsewhere"


def test_without_engines_there_is_nothing_to_assign() -> None:
    assert Router([]).assign("trial") == []
