"""What runs inside vLLM's workers: receiving weights from the trainer over gloo.

vLLM imports this module by the name given with `--worker-extension-cls`, before it makes the transfer engine, so
that the registration at the end comes in time. Names of vLLM are used as vLLM documents them for such engines.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, override

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from seatrial_rollout.engine.gloo import GlooGroup
from seatrial_rollout.engine.tensors import TensorSpec, TransferPlan, digest, new_bucket, views


@dataclass
class GlooInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not typed for us
    """Where the group meets."""

    master_address: str
    master_port: int
    rank_offset: int
    """Rank of this server's first worker."""
    world_size: int
    timeout_seconds: float


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]  # as above
    """What the staged weights have to be."""

    digests: list[str] = field(default_factory=list)
    """SHA-256 of each bucket, in debug mode."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    specs: Sequence[TensorSpec]
    data: torch.Tensor


class GlooTransferEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):  # type: ignore[misc]  # as above
    """Receives weights into host memory on a thread of its own, so that vLLM generates until they are all there.

    join, then per update: stage ─▶ (generation goes on) ─▶ start: wait for the last byte ─▶ load ─▶ finish.
    A transfer that fails does so in start, before the model is touched.
    """

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._thread: ThreadPoolExecutor | None = None
        self._group: Future[GlooGroup] | None = None
        self._incoming: Future[list[_Bucket]] | None = None
        self._staged: list[_Bucket] = []
        self._timeout_seconds = 0.0

    @override
    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        self.shutdown()
        rank = init_info.rank_offset + self.parallel_config.rank
        self._timeout_seconds = init_info.timeout_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
        self._group = self._thread.submit(
            GlooGroup.join,
            address=init_info.master_address,
            port=init_info.master_port,
            rank=rank,
            world_size=init_info.world_size,
            timeout_seconds=init_info.timeout_seconds,
        )

    def stage(self, plan: TransferPlan) -> None:
        """Begin to receive what the plan says.

        Raises:
            RuntimeError: there is no group.
        """
        if self._thread is None or self._group is None:
            raise RuntimeError("stage_weights needs a group: call init_weight_transfer_engine first")
        self._staged = []
        self._incoming = self._thread.submit(_receive, self._group, plan)

    @override
    def start_weight_update(self) -> None:
        if self._incoming is None:
            raise RuntimeError("no weights were staged")
        self._staged = self._incoming.result(timeout=self._timeout_seconds)
        self._incoming = None
        initialize_layerwise_reload(self.model)

    @override
    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    @override
    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        digests = [digest(bucket.data) for bucket in self._staged] if update_info.digests else []
        if digests != update_info.digests:
            raise RuntimeError("the weights that arrived are not those that were sent")
        self.model.load_weights(
            (name, tensor.to(self.device))
            for bucket in self._staged
            for name, tensor in views(bucket.data, bucket.specs)
        )
        self._staged = []

    @override
    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        _repack_heads(self.model)

    @override
    def shutdown(self) -> None:
        if self._group is not None and self._group.done() and self._group.exception() is None:
            self._group.result().close()
        if self._thread is not None:
            # A thread that waits for a peer that is gone ends with the group's timeout.
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._thread = self._group = self._incoming = None
        self._staged = []


def _receive(group: Future[GlooGroup], plan: TransferPlan) -> list[_Bucket]:
    received = []
    for bucket in plan.buckets():
        data = new_bucket(bucket)
        group.result().broadcast(data)
        received.append(_Bucket(bucket, data))
    return received


def _repack_heads(model: torch.nn.Module) -> None:
    """Bring the packed copies of output heads up to date.

    On CPUs vLLM packs each weight for its matrix product once it is loaded. A head that is tied to the embedding has
    no weight of its own in a checkpoint, so that vLLM never packs it again: it would multiply by the old one for ever.
    """
    if current_platform.is_cpu():
        for module in model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)


class WorkerExtension:
    """Methods that every vLLM worker gets; the attributes are the worker's."""

    weight_transfer_engine: Any
    model_runner: Any
    reload_weights: Any

    def load_weight_files(self, path: str) -> None:
        """Load a folder of safetensors files in place."""
        self.reload_weights(weights_path=path)
        _repack_heads(self.model_runner.get_model())

    def stage_weights(self, plan: dict[str, Any]) -> None:
        """Begin to receive tensors into host memory."""
        if isinstance(self.weight_transfer_engine, GlooTransferEngine):
            self.weight_transfer_engine.stage(TransferPlan.from_wire(plan))


if "gloo" not in WeightTransferEngineFactory._registry:  # noqa: SLF001  vLLM has no public way to ask
    WeightTransferEngineFactory.register_engine("gloo", GlooTransferEngine)
