"""The checkpoints of a Train stage as its launcher is told of them, while it runs and after."""

from seatrial_api.status import Checkpoint, CheckpointStatus
from seatrial_trainer.storage.checkpoints import CheckpointStore


def kept(store: CheckpointStore) -> CheckpointStatus | None:
    """The newest checkpoint and the best one by validation; none before there is a checkpoint.

    They are told of as they were written: only who uses one verifies it.
    """
    versions, scores = store.versions(), store.scores()
    if not versions:
        return None

    def described(version: int) -> Checkpoint:
        uri = store.files.address(store.root / f"{version:06d}")
        return Checkpoint(step=version, uri=uri, validation_pass_rate=scores.get(version))

    best = max(scores, key=lambda version: (scores[version], version), default=None)
    return CheckpointStatus(last=described(versions[-1]), best=None if best is None else described(best))
