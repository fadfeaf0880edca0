"""Trajectories as Arrow tables: one row a trajectory, so that stored groups open in `datasets` as they are."""

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from seatrial_api.errors import CorruptionError
from seatrial_api.trajectory import Trajectory

_CALL = pa.struct(
    [
        ("server", pa.string()),
        ("tool", pa.string()),
        ("arguments", pa.string()),
        ("result", pa.string()),
        ("is_error", pa.bool_()),
        ("duration_seconds", pa.float64()),
    ]
)
_TURN = pa.struct(
    [
        ("sequence", pa.int32()),
        ("start", pa.int32()),
        ("stop", pa.int32()),
        ("finish_reason", pa.string()),
        ("text", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
        ("engine_seconds", pa.float64()),
        ("cached_tokens", pa.int32()),
    ]
)
_SEQUENCE = pa.struct(
    [
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float64())),
        ("weight_versions", pa.list_(pa.int32())),
        ("parent", pa.int32()),
    ]
)
_GIVEN = pa.struct(
    [
        ("sequence", pa.int32()),
        ("start", pa.int32()),
        ("stop", pa.int32()),
        ("messages", pa.string()),
        ("tools", pa.string()),
        ("rendered_at", pa.string()),
        ("continues", pa.bool_()),
    ]
)
_FINDING = pa.struct([("kind", pa.string()), ("path", pa.string()), ("detail", pa.string())])
_PAIRS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))

SCHEMA = pa.schema(
    [
        ("trial_id", pa.string()),
        ("group_id", pa.string()),
        ("task", pa.string()),
        ("domain", pa.string()),
        ("purpose", pa.string()),
        ("harness", pa.string()),
        ("start_version", pa.int32()),
        ("outcome", pa.string()),
        ("detail", pa.string()),
        ("reward", pa.float64()),
        ("scores", _PAIRS),
        ("sequences", pa.list_(_SEQUENCE)),
        ("turns", pa.list_(_TURN)),
        ("given", pa.list_(_GIVEN)),
        ("charged_seconds", pa.float64()),
        ("world", pa.string()),
        ("num_restores", pa.int32()),
        ("restore_seconds", pa.float64()),
        ("num_resumptions", pa.int32()),
        ("findings", pa.list_(_FINDING)),
        ("wall_seconds", pa.float64()),
        ("phase_seconds", _PAIRS),
    ]
)
"""Logprobs are kept as 64-bit floats: what training read must be read again to the bit."""


def encode(trajectories: Sequence[Trajectory]) -> bytes:
    """Trajectories as the bytes of one parquet file, each page of which has a checksum."""
    rows = [_to_row(trajectory) for trajectory in trajectories]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def decode(data: bytes, *, origin: str) -> list[Trajectory]:
    """Trajectories from the bytes of a parquet file.

    Raises:
        CorruptionError: if the bytes are not what `encode` wrote, naming `origin`.
    """
    try:
        table = pq.read_table(io.BytesIO(data), page_checksum_verification=True)
        return [_from_row(row) for row in table.to_pylist()]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as exc:  # OSError: a page's header or checksum
        raise CorruptionError(f"{origin}: not a file of trajectories ({exc})") from exc


def _to_row(trajectory: Trajectory) -> dict[str, object]:
    row = trajectory.model_dump()
    row["outcome"] = trajectory.outcome.value
    for field in ("scores", "phase_seconds"):
        row[field] = [{"name": name, "value": value} for name, value in row[field].items()]
    return row


def _from_row(row: dict[str, object]) -> Trajectory:
    for field in ("scores", "phase_seconds"):
        pairs = row[field]
        if not isinstance(pairs, list):
            msg = f"{field} is not a list"
            raise TypeError(msg)
        row[field] = {pair["name"]: pair["value"] for pair in pairs}
    return Trajectory.model_validate(row)
