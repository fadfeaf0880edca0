"""Our receiver inside vLLM's workers, without the worker."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seatrial_rollout.engine.tensors import TransferPlan
from seatrial_trainer.weight_sync.sender import Sent, WeightSender

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of all that vLLM's workers import

ADDRESS = "127.0.0.1"
WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}


class Model(torch.nn.Linear):
    """Notes what it is told to load."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.loaded: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """As vLLM's models have it."""
        self.loaded |= dict(weights)


@pytest.fixture
def receiver() -> Iterator[Any]:
    """A worker's receiver."""
    from seatrial_rollout.engine.vllm_extension import GlooTransferEngine  # noqa: PLC0415  warns when it is imported

    config = SimpleNamespace(parallel_config=SimpleNamespace(rank=0), model_config=None)
    receiver = GlooTransferEngine(None, config, torch.device("cpu"), Model())
    yield receiver
    receiver.shutdown()


@pytest.fixture
def sender() -> Iterator[WeightSender]:
    """A sender with a bucket for each weight."""
    sender = WeightSender(lambda: iter(WEIGHTS.items()), bucket_bytes=24)
    yield sender
    sender.close()


def transfer(sender: WeightSender, receiver: Any, plan: TransferPlan, seconds: float = 20) -> Sent:
    """Join, and send what the receiver waits for."""
    port = sender.listen(ADDRESS, seconds)
    info = {"master_address": ADDRESS, "master_port": port, "rank_offset": 1, "world_size": 2}
    receiver.init_transfer_engine(receiver.parse_init_info(info | {"timeout_seconds": seconds}))
    sender.connect(2, seconds)
    receiver.stage(plan)
    return sender.send(with_digests=True)


def test_what_arrives_whole_is_loaded(sender: WeightSender, receiver: Any) -> None:
    sent = transfer(sender, receiver, sender.describe())
    receiver.start_weight_update()
    receiver.update_weights({"digests": sent.digests})

    assert len(sent.digests) == 2
    assert all(torch.equal(receiver.model.loaded[name], tensor) for name, tensor in WEIGHTS.items())


def test_weights_that_are_not_those_that_were_sent_are_not_loaded(sender: WeightSender, receiver: Any) -> None:
    sent = transfer(sender, receiver, sender.describe())
    receiver.start_weight_update()

    with pytest.raises(RuntimeError, match="not those that were sent"):
        receiver.update_weights({"digests": [*sent.digests[:-1], "0" * 64]})

    assert not receiver.model.loaded


def test_an_update_in_which_a_bucket_is_missing_is_refused_before_the_model_is_touched(
    sender: WeightSender, receiver: Any
) -> None:
    before = {name: tensor.data_ptr() for name, tensor in receiver.model.named_parameters()}
    described = sender.describe()
    longer = TransferPlan([*described.tensors, described.tensors[0]], described.bucket_bytes)
    transfer(sender, receiver, longer)
    sender.close()  # the rest will never come

    with pytest.raises(RuntimeError):
        receiver.start_weight_update()

    assert {name: tensor.data_ptr() for name, tensor in receiver.model.named_parameters()} == before
