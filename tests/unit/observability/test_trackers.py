from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.operations import TrackingSpec, Trackio
from seatrial_trainer.observability.trackers import open_trackers


def make_run(tracking: TrackingSpec) -> RLRun:
    return RLRun.model_validate(
        {
            "apiVersion": "seatrial.dev/v1alpha1",
            "kind": "RLRun",
            "metadata": {"name": "quickstart"},
            "spec": {
                "model": {"source": {"path": "policy"}, "contextLength": {"train": 512}},
                "data": {"train": {"source": {"path": "tasks"}}},
                "stages": [{"name": "train", "train": {"steps": 1, "validateEverySteps": 0}}],
                "tracking": tracking.model_dump(by_alias=True, exclude_none=True),
            },
        }
    )


def test_tensorboard_reads_what_a_run_logged(tmp_path: Path) -> None:
    (tracker,) = open_trackers(make_run(TrackingSpec()), tmp_path)
    for step, reward in enumerate((0.1, 0.4)):
        tracker.log(step, {"train/reward_mean": reward})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    values = [float(event.tensor_proto.float_val[0]) for event in events.Tensors("train/reward_mean")]
    assert values == pytest.approx([0.1, 0.4])


def test_a_tracker_whose_library_is_missing_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"spec\.tracking\.trackio.*install seatrial-trainer\[trackio\]"):
        open_trackers(make_run(TrackingSpec(trackio=Trackio(project="p"))), tmp_path)
