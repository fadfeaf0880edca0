"""Which sandboxes a run keeps warm."""

from seatrial_api.ceilings import trial_places
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.rollout import SandboxPoolSpec

_DEFAULTS = SandboxPoolSpec(world="any")


def sandbox_pools(spec: RLRunSpec) -> list[SandboxPoolSpec]:
    """The worlds of `rollout.sandboxes`, and `sandbox.world` if it is not among them.

    That one then has a group's sandboxes ready, and room for every trial that the agents pods hold at once.
    """
    listed, world = spec.rollout.sandboxes, spec.sandbox.world
    if world is None or any(one.world == world for one in listed):
        return listed
    group = spec.algorithm.group_size
    warm_max = max(_DEFAULTS.warm_max, group)
    own = SandboxPoolSpec(
        world=world,
        warm_min=group,
        warm_max=warm_max,
        ceiling=trial_places(spec.topology.agents) + warm_max,
        lifetime_seconds=max(_DEFAULTS.lifetime_seconds, spec.harness.limits.wall_timeout_seconds),
    )
    return [own, *listed]
