"""What a launcher hands to the driver: the segment to run, and what may change while it runs."""

from pathlib import Path

from seatrial_api.base import ApiModel, Auto, Positive
from seatrial_api.pods import Role
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.model import S3Source, Source
from seatrial_api.spec.operations import GuardsSpec


class DriverRequest(ApiModel):
    """`run.json`, in the run's folder or elsewhere. What the folder holds of earlier attempts is gone on with."""

    run: RLRun
    """The run, as it was validated."""
    base_dir: Path
    """Folder that relative paths of the manifest start at."""
    stages: list[str]
    """Stages to run, in order: one segment."""
    resume: bool = False
    """A person asked to go on: a stage whose gate failed is run anew instead of being answered from its report."""
    kept_in: S3Source | None = None
    """Prefix of this run alone, of which the run's folder is a working copy; none if the folder itself is kept."""
    pods: dict[Role, Positive] | None = None
    """Pods by role that the driver waits for, and places its processes on; none where Ray is the driver's own."""


class PodInputs(ApiModel):
    """What a pod brings before it joins, where pods share no volume: the same files to the same paths in each."""

    base_dir: Path
    """Folder that all of it lies below."""
    model: Source
    """The model."""
    tasks: list[TaskSet]
    """Every task set."""


class LiveSettings(ApiModel):
    """Body of `PUT /v1/settings`: what a run takes over while it runs. Both fields are wanted: they replace the old."""

    concurrency: Auto | Positive
    """`spec.async.concurrency`: trials in flight."""
    guards: GuardsSpec
    """`spec.guards`: bounds that end a Train stage."""
