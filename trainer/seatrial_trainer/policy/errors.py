"""What can go wrong between the driver and the policy's ranks.

TransientError
└── PolicyRankLostError   a rank's process died; start the policy anew and load a checkpoint
"""

from seatrial_api.errors import TransientError


class PolicyRankLostError(TransientError):
    """A rank's process died; what the policy held since its last checkpoint is lost."""

    def __init__(self, *, rank: int, during: str, detail: str) -> None:
        self.rank = rank
        self.during = during
        super().__init__(f"policy rank {rank} died during {during}: {detail}; start the policy anew from a checkpoint")
