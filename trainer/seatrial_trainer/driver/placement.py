"""Which pods the driver's processes run on.

Every pod of a run offers Ray one unit of its role's custom resource; a pod may have two roles. A process asks for a
sliver of it, which only says where it may run: GPUs and memory say how many fit. Ray spreads them over the pods.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seatrial_api.clock import SYSTEM_CLOCK, Clock, Deadline
from seatrial_api.errors import InvalidInputError
from seatrial_api.pods import Role

_SLIVER = 0.001
_PODS_SECONDS = 900.0
"""For all pods to join. The launcher starts the driver when they are up, so that they only have to find the head."""
_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Pods by role; none where Ray is the driver's own and everything runs on one machine."""

    pods: Mapping[Role, int] | None

    def options(self, role: Role) -> dict[str, Any]:
        """Ray's options of an actor of a role."""
        if self.pods is None:
            return {}
        return {"resources": {role.ray_resource: _SLIVER}, "scheduling_strategy": "SPREAD"}

    async def wait(
        self, offered: Callable[[], Mapping[str, float]], tell: Callable[[str], None], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Return when all pods have joined.

        Args:
            offered: Ray's resources as of now: `ray.cluster_resources`.
            tell: Told what is waited for.
            clock: The time.

        Raises:
            WaitTimeoutError: if they do not in time, naming those that are missing.
        """
        deadline = Deadline.after(_PODS_SECONDS, clock)
        while late := self.missing(offered()):
            deadline.check(f"pods to join: {late}")
            tell(f"waiting for pods to join: {late}")
            await clock.sleep(_POLL_SECONDS)

    def missing(self, offered: Mapping[str, float]) -> str:
        """Pods that have not joined, in words; empty when all have.

        Args:
            offered: Ray's resources, as `ray.cluster_resources` gives them.
        """
        found = {role: round(offered.get(role.ray_resource, 0.0)) for role in self.pods or {}}
        late = [
            f"{role} ({found[role]} of {wanted} are there)"
            for role, wanted in sorted((self.pods or {}).items())
            if found[role] < wanted
        ]
        return ", ".join(late)


def require_gpus(wanted: int, offered: Mapping[str, float]) -> None:
    """Refuse to compute on CPUs what GPUs were asked for.

    Raises:
        InvalidInputError: if Ray offers fewer than `wanted`.
    """
    found = offered.get("GPU", 0.0)
    if wanted > found:
        raise InvalidInputError(
            f"spec.topology.gpusPerNode: {wanted} wanted and {found:g} found; lower it, or set 0 for CPUs"
        )
