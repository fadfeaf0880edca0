"""The run directory: reports, groups, batch manifests and checkpoints.

<run>/run.json                                   what the driver was asked to do
<run>/owner                                      the driver that may write: the one that came last
<run>/stages/<stage>.json                        StageReport of each finished stage
<run>/trajectories/<stage>/<group>.parquet       finished groups, durable before anyone sees them
<run>/failures/<stage>/<trial>.parquet           training trials that infrastructure ended
<run>/stages/<stage>/batches/<version>.json      which groups the step to `version` + 1 trains
<run>/stages/<stage>/steps.jsonl                 what was measured about each step
<run>/stages/<stage>/comparisons/<version>.json  the trainer's logprobs of some trajectories, for the report
<run>/stages/<stage>/checkpoints/<version>/      policy and model; MANIFEST.json is written last
<run>/usage.json                                 what all attempts have used up so far
<run>/exports/                                   weights for the engines
<run>/logs/  <run>/tensorboard/  <run>/report.html
<run>/results.json  <run>/trials.parquet         what Evaluate stages measured, for programs

The folder is what is kept, or a working copy of what is kept in S3 under the same names.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import structlog
from pydantic import ValidationError

from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import CorruptionError, InvalidInputError, SeatrialError
from seatrial_api.spec.model import S3Source
from seatrial_api.stage_report import StageReport
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.storage import trajectory_table
from seatrial_trainer.storage.atomic import write_atomic
from seatrial_trainer.storage.checkpoints import MANIFEST_FILE, CheckpointStore
from seatrial_trainer.storage.files import DISK, Files
from seatrial_trainer.storage.manifest import BatchManifest, file_digest

_log = structlog.get_logger(__name__)

REQUEST_FILE = "run.json"
REPORT_FILE = "report.html"
USAGE_FILE = "usage.json"
RESULTS_FILE = "results.json"
TRIALS_FILE = "trials.parquet"
_OWNER = "owner"
_OWNED = ("stages", "trajectories", "failures")
_PAGES = ("tensorboard", "logs", REPORT_FILE, RESULTS_FILE, TRIALS_FILE)
_BRING_BACK = "bring it back from a copy, or begin the run anew"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def read_request(folder: Path) -> DriverRequest:
    """What the run of a folder was asked for.

    Raises:
        InvalidInputError: if the folder holds no run, or the file is damaged.
    """
    try:
        return DriverRequest.model_validate_json((folder / REQUEST_FILE).read_bytes())
    except OSError:
        raise InvalidInputError(f"{folder} holds no run: there is no {REQUEST_FILE}") from None
    except ValidationError as exc:
        raise InvalidInputError(f"{folder / REQUEST_FILE} is damaged: {exc.errors()[0]['msg']}") from exc


class SupersededError(SeatrialError):
    """Another driver works on the run now; whatever this one still does is for nothing."""


@dataclass(frozen=True)
class RunStorage:
    """One run's folder; every write is atomic."""

    root: Path
    owner: str = ""
    """The driver that writes through this object; without one, nobody is kept from writing."""
    files: Files = DISK
    """Makes what is written durable."""

    @classmethod
    def open(cls, root: Path, kept_in: S3Source | None = None) -> Self:
        """A run's storage; nothing is read yet.

        Args:
            root: The run's folder on this machine.
            kept_in: Prefix of this run alone, of which the folder is a working copy; none if the folder itself is kept.
        """
        if kept_in is None:
            return cls(root)
        from seatrial_rollout.object_store.store import ObjectStore  # noqa: PLC0415  boto3, which few need
        from seatrial_trainer.storage.mirror import Mirror  # noqa: PLC0415  as above

        return cls(root, files=Mirror(root, ObjectStore.of(kept_in), _OWNED, _is_big, _is_left_over))

    def taken_over(self) -> Self:
        """The storage for a driver of its own, from now on the only one that logs batches and stores results.

        A driver on a node that is cut off may live on while the next attempt runs elsewhere.

        Raises:
            InvalidInputError: if an object store refuses, saying what to change.
            StoreUnavailableError: if an object store does not answer.
        """
        owner = uuid4().hex
        self.files.write(self.root / _OWNER, owner.encode())
        self.files.restore()
        if (request := self.root / REQUEST_FILE).exists():
            self.files.keep(request)
        return replace(self, owner=owner)

    def keep_pages(self) -> None:
        """Make durable what people look at beside the results, as it is now.

        Raises:
            StoreUnavailableError: if an object store does not answer.
        """
        for page in _PAGES:
            for path in (self.root / page, *(self.root / page).rglob("*")):
                if path.is_file():
                    self.files.keep_later(path)
        self.files.settle()

    @property
    def tensorboard(self) -> Path:
        """Folder of the TensorBoard files."""
        return self.root / "tensorboard"

    @property
    def logs(self) -> Path:
        """Folder of the engines' logs."""
        return self.root / "logs"

    @property
    def exports(self) -> Path:
        """Folder of the weights that engines load."""
        return self.root / "exports"

    def stage(self, name: str) -> "StageStorage":
        """The part of the folder that belongs to one stage."""
        return StageStorage(self.root, name, self.owner, self.files)

    def reports(self) -> Iterator[StageReport]:
        """Every stored report, oldest first."""
        for path in sorted((self.root / "stages").glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            yield _read_report(path)

    def comparisons(self) -> dict[str, list[list[float]]]:
        """The trainer's logprobs of the trajectories that it was asked about: by trial, sequence and token."""
        paths = sorted(self.root.glob("stages/*/comparisons/*.json"))
        return {trial: logprobs for path in paths for trial, logprobs in json.loads(path.read_text()).items()}

    def trajectories(self, pattern: str = "*") -> Iterator[Trajectory]:
        """Every stored trajectory of the stages that match a glob pattern, those of failed trials last."""
        for kind in ("trajectories", "failures"):
            for path in sorted((self.root / kind).glob(f"{pattern}/*.parquet")):
                yield from trajectory_table.decode(path.read_bytes(), origin=str(path))


@dataclass(frozen=True)
class StageStorage:
    """One stage's part of the run directory."""

    root: Path
    name: str
    owner: str = ""
    files: Files = DISK

    @property
    def folder(self) -> Path:
        """Batches and checkpoints of the stage."""
        return self.root / "stages" / self.name

    @property
    def checkpoints(self) -> CheckpointStore:
        """Checkpoints of the stage."""
        return CheckpointStore(self.folder / "checkpoints", self._check_owner, self.files)

    @property
    def has_begun(self) -> bool:
        """Whether the stage left anything that it goes on from."""
        return self._report_path.exists() or self.folder.exists() or (self.root / "trajectories" / self.name).exists()

    def read_report(self, fingerprint: str) -> StageReport | None:
        """The stage's report, if it was made for the same question.

        Raises:
            CorruptionError: if the file is there and cannot be read.
        """
        path = self._report_path
        if not path.exists():
            return None
        report = _read_report(path)
        return report if report.fingerprint == fingerprint else None

    def write_report(self, report: StageReport) -> None:
        """Persist the stage's report, after all that it tells of.

        Raises:
            SupersededError: if another driver has taken over.
            StoreUnavailableError: if an object store does not answer.
        """
        self._check_owner()
        self.files.settle()
        self.files.write(self._report_path, report.model_dump_json(by_alias=True, indent=2).encode())

    def discard(self) -> None:
        """Forget everything about the stage: it is run anew."""
        groups, failures = self.root / "trajectories" / self.name, self.root / "failures" / self.name
        for path in (self._report_path, self.folder, groups, failures):
            self.files.remove(path)
        self.files.settle()

    def begin_anew(self) -> None:
        """Forget all but how often the stage was tried: a trial of before may still run, and its id stays its own."""
        path = self._attempts_path
        attempts = path.read_bytes() if path.exists() else b"0"
        self.discard()
        self.files.write(path, attempts)

    def write_group(self, group_id: str, trajectories: Sequence[Trajectory]) -> None:
        """Persist a finished group.

        Raises:
            OSError: naming the file, if the disk is full; nothing is stored then.
            StoreUnavailableError: if an object store does not answer.
        """
        self.files.write(self._group_path(group_id), trajectory_table.encode(trajectories))

    def read_group(self, group_id: str) -> list[Trajectory]:
        """A stored group.

        Raises:
            CorruptionError: if it is missing or cannot be read.
        """
        path = self._group_path(group_id)
        if not path.exists():
            raise CorruptionError(f"{path}: a batch manifest names this group but it is not stored; {_BRING_BACK}")
        return trajectory_table.decode(path.read_bytes(), origin=str(path))

    def read_batch_groups(self, manifest: BatchManifest) -> list[list[Trajectory]]:
        """The groups of a logged batch, in training order.

        Raises:
            CorruptionError: if one is missing, or not what was trained.
        """
        for group_id, digest in zip(manifest.group_ids, manifest.digests, strict=True):
            path = self._group_path(group_id)
            if path.exists() and file_digest(path) != digest:
                raise CorruptionError(f"{path}: is not what step {manifest.version} trained; {_BRING_BACK}")
        return [self.read_group(group_id) for group_id in manifest.group_ids]

    def read_waiting(self, group_ids: Iterable[str]) -> Iterator[list[Trajectory]]:
        """Stored groups that no batch has; damaged ones are set aside loudly, for their tasks can be tried again."""
        for group_id in group_ids:
            try:
                yield self.read_group(group_id)
            except CorruptionError as error:
                _log.warning("set a damaged group aside; its task is tried again", group=group_id, error=str(error))
                path = self._group_path(group_id)
                self.files.rename(path, path.with_suffix(".damaged"))

    def write_failure(self, trajectory: Trajectory) -> None:
        """Keep what is left of a trial that infrastructure ended: for people, never for training."""
        path = self.root / "failures" / self.name / f"{file_name(trajectory.trial_id)}.parquet"
        self._write_later(path, trajectory_table.encode([trajectory]))

    def has_group(self, group_id: str) -> bool:
        """Whether a group is stored."""
        return self._group_path(group_id).exists()

    def group_ids(self) -> list[str]:
        """The stored groups, sorted; an id that cannot be a file name is given as its file is called."""
        return sorted(path.stem for path in (self.root / "trajectories" / self.name).glob("*.parquet"))

    def write_batch(self, manifest: BatchManifest) -> None:
        """Persist which groups a step trains, before it trains them; the stored groups are what they are now.

        Raises:
            SupersededError: if another driver has taken over, or logged this step already.
        """
        self._check_owner()
        digests = [file_digest(self._group_path(group_id)) for group_id in manifest.group_ids]
        sealed = manifest.model_copy(update={"digests": digests}).sealed()
        if not self.files.write_new(self._batch_path(manifest.version), sealed):
            raise SupersededError(f"another driver has logged step {manifest.version} of {self.root}")

    def read_batches(self, since_version: int, trained_version: int = 0) -> list[BatchManifest]:
        """Manifests of the batches from a version on.

        Args:
            since_version: Version that the first of them starts from.
            trained_version: One that has been trained: all batches before it were logged.

        Raises:
            CorruptionError: if one is missing or cannot be read.
        """
        logged = {int(path.stem) for path in self._batch_path(0).parent.glob("[0-9]*.json")}
        versions = range(since_version, max(trained_version, *(version + 1 for version in logged), 0))
        for version in versions:
            if version not in logged:
                raise CorruptionError(f"{self._batch_path(version)}: was logged and is gone; {_BRING_BACK}")
        paths = {version: self._batch_path(version) for version in versions}
        return [BatchManifest.unsealed(path).of(version, path) for version, path in paths.items()]

    def append_step(self, step: Mapping[str, Any]) -> None:
        """Add what was measured about a step, for guards, reports and a resumed run."""
        path = self.folder / "steps.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(step) + "\n")
        self.files.keep_later(path)

    def read_steps(self) -> list[dict[str, Any]]:
        """What was measured about each step; the newest measurement of a version counts, a torn line does not."""
        path = self.folder / "steps.jsonl"
        steps: dict[int, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                step = json.loads(line)
            except json.JSONDecodeError:
                continue
            steps[step["version"]] = step
        return [steps[version] for version in sorted(steps)]

    def write_comparison(self, version: int, logprobs: Mapping[str, list[list[float]]]) -> None:
        """Keep the trainer's logprobs of some trajectories, as they were before the step from `version`."""
        path = self.folder / "comparisons" / f"{version:06d}.json"
        self._write_later(path, json.dumps(logprobs).encode())

    def next_attempt(self) -> int:
        """Number of this attempt at the stage, from 0; ids of an earlier one are never used again."""
        path = self._attempts_path
        attempt = int(path.read_text()) if path.exists() else 0
        self.files.write(path, str(attempt + 1).encode())
        return attempt

    def _write_later(self, path: Path, data: bytes) -> None:
        write_atomic(path, data)
        self.files.keep_later(path)

    def _check_owner(self) -> None:
        if self.owner and self.files.read(self.root / _OWNER) != self.owner.encode():
            raise SupersededError(f"another driver has taken over {self.root}; this one stores nothing more")

    @property
    def _attempts_path(self) -> Path:
        return self.folder / "attempts"

    @property
    def _report_path(self) -> Path:
        return self.root / "stages" / f"{self.name}.json"

    def _group_path(self, group_id: str) -> Path:
        return self.root / "trajectories" / self.name / f"{file_name(group_id)}.parquet"

    def _batch_path(self, version: int) -> Path:
        return self.folder / "batches" / f"{version:06d}.json"


def file_name(identifier: str) -> str:
    """An identifier as a file name; what cannot stand in one is replaced and told apart by a digest."""
    safe = _UNSAFE.sub("_", identifier)
    if safe == identifier:
        return identifier
    return f"{safe}-{hashlib.sha256(identifier.encode()).hexdigest()[:8]}"


def _is_big(key: str) -> bool:
    """Whether an object is a checkpoint's own; its manifest says what is there."""
    return "/checkpoints/" in key and not key.endswith(f"/{MANIFEST_FILE}")


def _is_left_over(key: str) -> bool:
    """Whether an object was handed over for a checkpoint that never came about: its folder starts with a dot."""
    return "/checkpoints/." in key


def _read_report(path: Path) -> StageReport:
    try:
        return StageReport.model_validate_json(path.read_bytes())
    except ValidationError as exc:
        raise CorruptionError(f"{path}: not a stage report ({exc})") from exc
