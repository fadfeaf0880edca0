import pytest

from seatrial_api.driver_request import LiveSettings
from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.operations import GuardsSpec
from seatrial_trainer.driver.live import LiveSpec
from tests.training_doubles import make_run


def live_spec() -> LiveSpec:
    return LiveSpec(make_run(spec__guards={"maxErrorRate": None, "maxEntropy": 2.0}))


def test_what_the_manifest_says_is_in_force_at_first() -> None:
    live = live_spec()
    assert live.concurrency == "Auto"
    assert live.guards.max_entropy == 2.0


def test_new_settings_replace_the_old_ones_as_a_whole_and_leave_the_rest_as_it_was() -> None:
    live = live_spec()
    before = live.run
    settings = LiveSettings(concurrency=3, guards=GuardsSpec(min_entropy=0.1, max_error_rate=None))
    assert live.change(settings.model_dump_json(by_alias=True).encode()) == settings
    assert (live.concurrency, live.guards) == (3, settings.guards)
    was = {"async_": before.spec.async_, "guards": before.spec.guards}
    assert live.run.model_copy(update={"spec": live.run.spec.model_copy(update=was)}) == before


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"{", "Invalid JSON"),
        (b"\xff", "Invalid JSON"),
        (b"[]", "should be an object"),
        (b"{}", "concurrency: Field required; guards: Field required"),
        (b'{"concurrency": 0, "guards": {}}', "concurrency: Input should be 'Auto' or greater than or equal to 1"),
        (b'{"concurrency": 1.5, "guards": {}}', "concurrency: .*a valid integer"),
        (b'{"concurrency": "Auto", "guards": {"maxEntropy": -1}}', "guards.maxEntropy: .*greater than 0"),
        (b'{"concurrency": "Auto", "guards": {"maxEntropie": 1}}', "guards.maxEntropie: Extra inputs"),
        (b'{"concurrency": "Auto", "guards": {"minEntropy": 2, "maxEntropy": 1}}', "minEntropy 2 is not below"),
        (b'{"concurrency": 9000, "guards": {}}', "async.concurrency 9000 can never be reached"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_field_and_change_nothing(body: bytes, complaint: str) -> None:
    live = live_spec()
    before = live.run
    with pytest.raises(InvalidInputError, match=complaint):
        live.change(body)
    assert live.run is before
