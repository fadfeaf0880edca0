"""What a plan asks for: each action is safe to carry out again, and a plan may be cut off after any of them."""

from dataclasses import dataclass
from typing import Literal

from seatrial_api.driver_request import LiveSettings
from seatrial_api.playbook import Segment
from seatrial_api.status import RLRunStatus


@dataclass(frozen=True, slots=True)
class ApplyPool:
    """Bring the run's RolloutPool to what its spec says."""

    keeps_sandboxes: bool = True
    """Whether trials are to come."""


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Make the RayJob of an attempt."""

    segment: Segment
    attempt: int


@dataclass(frozen=True, slots=True)
class EnsureSecret:
    """Make the Secret of an attempt, which its pods wait for, unless it is there.

    It comes after the RayJob: a Secret without a RayJob would be found by nobody.
    """

    segment: Segment
    attempt: int
    resume: bool


@dataclass(frozen=True, slots=True)
class DeleteAttempt:
    """Delete the Secret and then the RayJob of an attempt; the RayJob stays until its pods are gone."""

    segment: int
    attempt: int


@dataclass(frozen=True, slots=True)
class PutSettings:
    """Hand live settings to the driver."""

    settings: LiveSettings


@dataclass(frozen=True, slots=True)
class StopDriver:
    """Ask the driver to write a checkpoint and end."""


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """Delete the run, whose time after the end is over."""


type Action = ApplyPool | CreateJob | EnsureSecret | DeleteAttempt | PutSettings | StopDriver | DeleteRun


@dataclass(frozen=True, slots=True)
class Story:
    """An event: something that happened to a run, for people."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about a run now: the actions in order, then one write of the status, then the removals.

    Something is removed only once the status tells why: an attempt's driver tells how it ended but once.
    """

    actions: tuple[Action, ...]
    status: RLRunStatus
    removals: tuple[Action, ...]
    next_look_seconds: float
    """When to look again if nothing happens before."""
    needs_live_look: bool
    """Whether it rests on what was not seen, or makes or removes something: then it is made again from a live look."""
