"""Conditions: the truth about an object, in the form that Kubernetes tools read."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from seatrial_api.base import ApiModel, NonNegative


class Condition(ApiModel):
    """One statement about an object, as of the generation that was observed."""

    type: Annotated[str, Field(max_length=64)]
    """What is stated."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    reason: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]*$", max_length=64)]
    """Why, in one word for programs."""
    message: Annotated[str, Field(max_length=32_768)] = ""
    """Why, in a sentence for people."""
    last_transition_time: datetime
    """When `status` last changed."""
    observed_generation: NonNegative
    """`metadata.generation` that the statement is about."""


class RunCondition(StrEnum):
    """Types of an RLRun's conditions."""

    ACCEPTED = "Accepted"
    """True: the spec is valid and all that it refers to exists. False: it is not (`InvalidSpec`, `MissingReference`).
    Absent: the operator has not seen the run yet."""

    SCHEDULED = "Scheduled"
    """True: the current segment's nodes are there (`Running`). False: they are waited for (`Queued`, `Starting`), the
    cluster refuses to make them (`Refused`), or the segment lost them (`NodesLost`). Absent: no segment was started, or
    none is left to run."""

    PROGRESSING = "Progressing"
    """True: the driver answers (`StageRunning`), or writes a checkpoint and ends as it was asked to (`Stopping`).
    False: it does not answer (`Unreachable`). Absent: no driver runs."""

    SUSPENDED = "Suspended"
    """True: `spec.suspend` is set and nodes are released (`UserRequest`). False: it was set before and the run went on
    (`Resumed`). Absent: it was never set."""

    GUARDED = "Guarded"
    """True: a guard stopped a Train stage; its name is in the message (`GuardFired`). False: the run went on after
    that (`Resumed`). Absent: no guard has fired."""

    COMPLETE = "Complete"
    """True: every stage passed (`AllStagesPassed`). Absent: otherwise; it is never False."""

    FAILED = "Failed"
    """True: a stage did not pass and nothing after it runs (`GateFailed`; `StageFailed`: its input has to be changed;
    `AttemptsExhausted`). False: it was so and the run went on (`Resumed`). Absent: nothing failed."""


class WorldCondition(StrEnum):
    """Types of a WorldImage's conditions."""

    RESOLVED = "Resolved"
    """True: the image's digest is known (`DigestKnown`). False: the registry refused or lacks it (`NotFound`,
    `Unauthorized`). Unknown: the registry has not answered yet (`Unreachable`). Absent: not looked up yet."""

    CACHED = "Cached"
    """True: every node that `prePull` selects holds the image (`Pulled`). False: pulling, or a pull failed (`Pulling`,
    `PullFailed`). Absent: `prePull` is off."""

    INSPECTED = "Inspected"
    """True: the inspection of this digest passed (`InspectionPassed`). False: it runs (`Inspecting`), found faults
    (`InspectionFailed`), or could not be carried out (`JobFailed`, `PullFailed`). Absent: `inspection` is empty."""

    READY = "Ready"
    """True: sandboxes of this world can be claimed (`Ready`). False: one of the other conditions is not true; its type
    is the reason. Absent: the operator has not seen the object yet."""


class PoolCondition(StrEnum):
    """Types of a RolloutPool's conditions."""

    ENGINES_READY = "EnginesReady"
    """True: every engine answers at the expected weight version (`EnginesReady`). False: some do not (`Starting`,
    `Degraded`), or a pool on its own cannot be made (`InvalidSpec`, `NameTaken`, `Refused`). Absent: no engine was
    started."""

    SANDBOXES_READY = "SandboxesReady"
    """True: every world has its least number of warm sandboxes, those in use included (`Warm`). False: it has not
    (`Filling`), or something keeps them from being made (`PullFailed`, `QuotaExceeded`, `WorldNotReady`). Unknown: the
    broker has not told (`NotCounted`). Absent: the pool keeps no sandboxes."""

    READY = "Ready"
    """True: trials can start (`Ready`). False: one of the other conditions is not true; its type is the reason.
    Absent: the operator has not seen the object yet."""


class RunPhase(StrEnum):
    """Where a run stands, for a printed column alone; conditions hold the truth."""

    PENDING = "Pending"
    """Accepted or not looked at yet; nothing runs."""
    QUEUED = "Queued"
    """Waiting for nodes."""
    RUNNING = "Running"
    """A stage runs."""
    SUSPENDED = "Suspended"
    """Nodes are released at the user's wish."""
    GUARDED = "Guarded"
    """A guard stopped the run; it can be resumed."""
    SUCCEEDED = "Succeeded"
    """Every stage passed."""
    FAILED = "Failed"
    """A gate or a stage failed."""
