"""What a pool wants sent to the API server."""

from dataclasses import dataclass

from seatrial_operator.sandboxes.core.pods import SandboxPod


@dataclass(frozen=True, slots=True)
class Create:
    """Make a pod of this name; `again` after an answer that did not tell, when it may be there already."""

    name: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Bind:
    """Give a pod to a trial, if it still is as of this version."""

    pod: SandboxPod
    trial: str
    run: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Ask how a pod is now."""

    name: str
    trial: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the very pod of this uid."""

    name: str
    uid: str
    again: bool = False


type Action = Create | Bind | Look | Delete
