"""What a launcher cannot honour, told before anything starts: no field is ever ignored in silence."""

from typing import Literal, assert_never

from seatrial_api.refusals.cluster import in_cluster
from seatrial_api.refusals.common import everywhere
from seatrial_api.refusals.local import on_this_machine
from seatrial_api.refusals.refusal import Refusal
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.operations import StorageSpec

__all__ = ["Launcher", "Refusal", "refusals"]

type Launcher = Literal["local", "operator"]
"""Who starts a run: `seatrial run` on this machine, or the operator in a cluster."""


def refusals(
    spec: RLRunSpec, launcher: Launcher = "local", *, default_storage: StorageSpec | None = None
) -> list[Refusal]:
    """Every field of `spec` that `launcher` cannot honour.

    Args:
        spec: The run.
        launcher: Who would start it.
        default_storage: What the operator takes where the spec names no storage; none if that is not known here.
    """
    common = list(everywhere(spec))
    match launcher:
        case "local":
            return [*common, *on_this_machine(spec)]
        case "operator":
            return [*common, *in_cluster(spec, default_storage)]
        case _:
            assert_never(launcher)
