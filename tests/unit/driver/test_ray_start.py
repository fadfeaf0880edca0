import pytest

from seatrial_trainer.driver.processes import in_time

SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup"


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_ray_that_was_too_slow_is_started_again(times: int) -> None:
    outcomes = iter([Exception(SLOW)] * times)

    def start() -> None:
        for error in outcomes:
            raise error

    in_time(start)
    assert next(outcomes, None) is None


@pytest.mark.parametrize(("error", "tries"), [(SLOW, 3), ("no such option", 1)])
def test_one_that_never_starts_and_any_other_fault_are_told(error: str, tries: int) -> None:
    seen = []

    def start() -> None:
        seen.append(error)
        raise Exception(error)  # noqa: TRY002  as Ray does

    with pytest.raises(Exception, match=error[:10]):
        in_time(start)
    assert len(seen) == tries
