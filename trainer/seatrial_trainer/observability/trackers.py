"""Experiment trackers: TensorBoard files always, the others through their own libraries when asked."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, override

from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.operations import MLflow, Trackio, Wandb


class Tracker(Protocol):
    """Takes scalars by name."""

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record scalars of one step."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


class TensorBoardTracker(Tracker):
    """TensorBoard event files."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary import Writer  # noqa: PLC0415  half a second that only a driver pays

        self._writer = Writer(str(folder))

    @override
    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    @override
    def close(self) -> None:
        self._writer.close()


class WandbTracker(Tracker):
    """Weights & Biases."""

    def __init__(self, settings: Wandb, run: RLRun, folder: Path) -> None:
        wandb = _load("wandb", "spec.tracking.wandb")
        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=run.metadata.name,
            id=f"{run.metadata.name}-{folder.name}",
            resume="allow",
            dir=str(folder),
            config=run.spec.model_dump(mode="json", by_alias=True),
        )

    @override
    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=step)

    @override
    def close(self) -> None:
        self._run.finish()


class MLflowTracker(Tracker):
    """MLflow."""

    def __init__(self, settings: MLflow, run: RLRun) -> None:
        mlflow = _load("mlflow", "spec.tracking.mlflow")
        self._client = mlflow.MlflowClient(settings.tracking_uri)
        experiment = self._client.get_experiment_by_name(settings.experiment)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(settings.experiment)
        self._run_id = self._client.create_run(experiment_id, run_name=run.metadata.name).info.run_id

    @override
    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._client.log_metric(self._run_id, name, value, step=step)

    @override
    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class TrackioTracker(Tracker):
    """trackio."""

    def __init__(self, settings: Trackio, run: RLRun) -> None:
        self._trackio = _load("trackio", "spec.tracking.trackio")
        self._trackio.init(project=settings.project, name=run.metadata.name, resume="allow")

    @override
    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        self._trackio.log(dict(scalars), step=step)

    @override
    def close(self) -> None:
        self._trackio.finish()


def open_trackers(run: RLRun, folder: Path) -> Sequence[Tracker]:
    """Every tracker that the run asks for.

    Args:
        run: The run.
        folder: The run's folder.

    Raises:
        InvalidInputError: if a tracker's library is not installed.
    """
    tracking = run.spec.tracking
    trackers: list[Tracker] = [TensorBoardTracker(folder / "tensorboard")]
    if tracking.wandb:
        trackers.append(WandbTracker(tracking.wandb, run, folder))
    if tracking.mlflow:
        trackers.append(MLflowTracker(tracking.mlflow, run))
    if tracking.trackio:
        trackers.append(TrackioTracker(tracking.trackio, run))
    return trackers


def _load(module: str, field: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise InvalidInputError(
            f"{field}: the library {module} is not installed; install seatrial-trainer[{module}] or remove the field"
        ) from exc
