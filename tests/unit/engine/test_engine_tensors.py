"""How named tensors travel."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from seatrial_rollout.engine.tensors import TensorSpec, TransferPlan, digest, new_bucket, views

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8]
shapes = st.lists(st.integers(0, 5), min_size=0, max_size=3)


@given(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=8), st.integers(1, 2000))
def test_tensors_come_out_of_buckets_as_they_went_in(
    kinds: list[tuple[list[int], torch.dtype]], max_bytes: int
) -> None:
    tensors = {f"t{i}": torch.randint(0, 100, shape).to(dtype) for i, (shape, dtype) in enumerate(kinds)}
    plan = TransferPlan([TensorSpec.of(name, tensor) for name, tensor in tensors.items()], max_bytes)

    received = {}
    for bucket_specs in TransferPlan.from_wire(plan.to_wire()).buckets():
        bucket = new_bucket(bucket_specs)
        assert bucket.numel() <= max(max_bytes, bucket_specs[0].padded_bytes)
        for name, target in views(bucket, bucket_specs):
            target.copy_(tensors[name])
        received |= dict(views(bucket, bucket_specs))

    assert list(received) == list(tensors)
    assert all(torch.equal(received[name], tensors[name]) for name in tensors)
    assert all(received[name].dtype == tensors[name].dtype for name in tensors)


def test_a_digest_tells_buckets_apart() -> None:
    bucket = torch.zeros(16, dtype=torch.uint8)
    before = digest(bucket)
    bucket[3] = 1

    assert digest(bucket) != before
