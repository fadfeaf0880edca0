"""What it costs to keep a run in S3: seconds per GB to save, upload and resume, and milliseconds for each group.

    python -m bench.run_storage_s3 [--gigabytes 1] [--endpoint http://minio:9000 --bucket runs]

Without an endpoint Versity's gateway serves S3 from a folder of this machine (`make test-tools` builds it): client and
server then share cores and disk, with no network. The plain upload is boto3's own, of one file of the same size.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import boto3

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.errors import CorruptionError
from seatrial_api.spec.model import S3Source
from seatrial_trainer.storage.run_storage import RunStorage
from tests.object_stores import KEYS, RealBucket
from tests.trajectories import make_trajectory

NUM_FILES = 4
"""Files of a checkpoint."""
NUM_GROUPS = 50


def seconds_of(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    started = SYSTEM_CLOCK.now()
    work()
    return SYSTEM_CLOCK.now() - started


def save(storage: RunStorage, num_bytes: int) -> None:
    """Store a checkpoint as the training loop does; its upload goes on behind."""
    block = os.urandom(1 << 20)
    with storage.stage("train").checkpoints.writing(1, {}) as folder:
        for index in range(NUM_FILES):
            (folder / f"part-{index}").write_bytes(block * (num_bytes // NUM_FILES >> 20))


def resume(folder: Path, kept_in: S3Source) -> None:
    """Take the run over in a fresh folder, and have its newest checkpoint verified."""
    if RunStorage.open(folder, kept_in).taken_over().stage("train").checkpoints.latest() is None:
        raise CorruptionError("the checkpoint did not come back")


def milliseconds_a_group(storage: RunStorage) -> float:
    """Median time until a group of 8 trajectories is stored."""
    stage = storage.stage("train")
    trajectories = [make_trajectory(f"t-{index}") for index in range(8)]
    return 1e3 * statistics.median(
        seconds_of(partial(stage.write_group, f"g-{index}", trajectories)) for index in range(NUM_GROUPS)
    )


def measure(kept_in: S3Source, folder: Path, num_bytes: int) -> list[tuple[str, float, str]]:
    """Rows: what, figure, unit."""
    gigabytes = num_bytes / 1e9
    bucket, _, prefix = kept_in.uri.removeprefix("s3://").partition("/")
    storage = RunStorage.open(folder / "a", kept_in).taken_over()
    on_disk = seconds_of(lambda: save(RunStorage(folder / "disk"), num_bytes))
    stopped = seconds_of(lambda: save(storage, num_bytes))
    uploaded = seconds_of(storage.stage("train").checkpoints.settle)
    big = folder / "plain"
    big.write_bytes(os.urandom(1 << 20) * (num_bytes >> 20))
    client = boto3.client("s3", endpoint_url=kept_in.endpoint_url)
    plain = seconds_of(lambda: client.upload_file(str(big), bucket, f"{prefix}-plain"))
    resumed = seconds_of(lambda: resume(folder / "b", kept_in))
    return [
        ("written and digested, on disk", on_disk / gigabytes, "s/GB"),
        ("the same, kept in S3", stopped / gigabytes, "s/GB"),
        ("upload behind the steps", uploaded / gigabytes, "s/GB"),
        ("boto3's upload of one file", plain / gigabytes, "s/GB"),
        ("resume in a fresh folder, verified", resumed / gigabytes, "s/GB"),
        ("a group until it is stored, disk", milliseconds_a_group(RunStorage(folder / "disk")), "ms"),
        ("a group until it is stored, S3", milliseconds_a_group(storage), "ms"),
    ]


def report(kept_in: S3Source, gigabytes: float) -> None:
    """Measure, and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(kept_in, Path(folder), round(gigabytes * 1e9))
    print("| what | figure |\n| --- | ---: |")
    for what, figure, unit in rows:
        print(f"| {what} | {figure:.2f} {unit} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of a checkpoint")
    parser.add_argument("--endpoint", help="S3 to measure; a gateway on this machine if none")
    parser.add_argument("--bucket", default="runs")
    wanted = parser.parse_args()

    if wanted.endpoint:
        report(
            S3Source(uri=f"s3://{wanted.bucket}/bench-{os.getpid()}", endpoint_url=wanted.endpoint), wanted.gigabytes
        )
        return
    os.environ.update(KEYS)
    gateway = RealBucket()
    try:
        gateway.empty()
        report(gateway.source(), wanted.gigabytes)
    finally:
        gateway.close()


if __name__ == "__main__":
    main()
