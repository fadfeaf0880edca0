"""The trainer's end of a collective: a plain object that lives in the policy's rank processes."""

from collections.abc import Callable
from dataclasses import dataclass

from seatrial_rollout.engine.tensors import BUCKET_BYTES, TensorSpec, TransferPlan
from seatrial_trainer.weight_sync.transport import Transport, TransportName, Weights, open_transport

ExportWeights = Callable[[], Weights]
"""`PolicyBackend.export_weights`: the same names in the same order at every call."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One transfer."""

    num_bytes: int
    digests: list[str]
    """SHA-256 of each bucket, in debug mode."""


class WeightSender:
    """Broadcasts the policy's weights to the engines.

        listen ─▶ connect ─▶ send, send, … ─▶ close

    Exporting may be a collective among the policy's ranks, so that `describe` and `send` are called on every rank;
    rank 0 alone holds the connection. Calls raise `RuntimeError` if engines are gone.
    """

    def __init__(self, export_weights: ExportWeights, *, rank: int = 0, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._export_weights = export_weights
        self._rank = rank
        self._bucket_bytes = bucket_bytes
        self._transport: Transport | None = None
        self._plan: TransferPlan | None = None

    def listen(self, address: str, timeout_seconds: float, transport: TransportName = "gloo") -> int:
        """Open the place where a new group meets, on this node's `address`, and return its port."""
        self.close()
        self._transport = open_transport(transport, address, timeout_seconds)
        return self._transport.port

    def connect(self, world_size: int, timeout_seconds: float) -> None:
        """Wait until the other ranks have come.

        Raises:
            RuntimeError: they have not, in time; or `listen` was not called.
        """
        self._open_transport().connect(world_size, timeout_seconds)

    def describe(self) -> TransferPlan:
        """What `send` sends."""
        if self._plan is None:
            tensors = [TensorSpec.of(name, tensor) for name, tensor in self._export_weights()]
            self._plan = TransferPlan(tensors, self._bucket_bytes)
        return self._plan

    def send(self, *, with_digests: bool = False) -> Sent:
        """Broadcast the weights of this moment.

        Raises:
            RuntimeError: an engine is gone, or there is no group; the export was gone through all the same.
        """
        plan = self.describe()
        weights = self._export_weights()
        digests: list[str] = []
        try:
            if self._rank == 0:
                digests = self._open_transport().send(weights, plan, with_digests=with_digests)
        finally:
            for _ in weights:  # whatever broke: the other ranks would wait for this one in the middle of the export
                pass
        return Sent(plan.num_bytes, digests)

    def close(self) -> None:
        """Leave the group, which ends what engines still wait for. Idempotent."""
        if self._transport is not None:
            self._transport.close()
        self._transport = None

    def _open_transport(self) -> Transport:
        if self._transport is None:
            raise RuntimeError("there is no group: call listen first")
        return self._transport
