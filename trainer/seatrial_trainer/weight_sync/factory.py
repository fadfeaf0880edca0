"""The weight synchronisation that a run asks for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_never

from seatrial_api.spec.asynchrony import WeightSyncSpec
from seatrial_trainer.weight_sync.files import FilesSync, PolicyExport
from seatrial_trainer.weight_sync.gloo import GlooSync
from seatrial_trainer.weight_sync.nccl import NcclSync
from seatrial_trainer.weight_sync.pool import Pool
from seatrial_trainer.weight_sync.protocol import WeightSync
from seatrial_trainer.weight_sync.remote_sender import RemoteSender


def make_weight_sync(
    spec: WeightSyncSpec, pool: Pool, *, export: PolicyExport, ranks: Sequence[Any], directory: Path
) -> WeightSync:
    """Make it.

    Args:
        spec: Method, deadline, and what becomes of running requests' keys and values.
        pool: The engines; for `gloo` and `nccl` they were started for that transport.
        export: Writes the policy as files, for `files`.
        ranks: The policy's rank actors, for `gloo` and `nccl`.
        directory: Where files go.
    """
    options: dict[str, Any] = {
        "clear_kv_cache": spec.clear_kv_cache,
        "timeout_seconds": spec.timeout_seconds,
        "verify_checksums": spec.verify_checksums,
    }
    match spec.method:
        case "files":
            return FilesSync(pool, export, directory, **options)
        case "gloo":
            return GlooSync(pool, RemoteSender(ranks), **options)
        case "nccl":
            return NcclSync(pool, RemoteSender(ranks, "nccl"), **options)
        case other:
            assert_never(other)
