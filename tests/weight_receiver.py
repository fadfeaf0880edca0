"""An engine's worker as far as a transfer by gloo sees it."""

import torch

from seatrial_rollout.engine.gloo import GlooGroup
from seatrial_rollout.engine.tensors import TransferPlan, digest, new_bucket, views


def receive(group: GlooGroup, plan: TransferPlan) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Receive a transfer and its digests."""
    tensors, digests = {}, []
    for specs in plan.buckets():
        bucket = new_bucket(specs)
        group.broadcast(bucket)
        digests.append(digest(bucket))
        tensors |= dict(views(bucket, specs))
    return tensors, digests
