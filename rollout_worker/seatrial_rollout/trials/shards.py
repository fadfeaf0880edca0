"""Parquet shards of tasks: columns `path` and `task_binary`, a gzip tar of the task directory."""

import hashlib
import io
import shutil
import tarfile
import tempfile
from pathlib import Path

from seatrial_api.errors import InvalidInputError

_COLUMNS = ("path", "task_binary")
_MAX_TASK_BYTES = 4 * 2**30
"""A task that unpacks to more is a mistake or a bomb."""
_MAX_TASK_FILES = 100_000


def unpack_shards(root: Path, cache_dir: Path, limit: int | None) -> dict[str, Path]:
    """Unpack the tasks of one shard or a folder of shards into a cache keyed by content.

    Args:
        root: A parquet file, or a folder with parquet files.
        cache_dir: Receives one folder per distinct task; what is there already is used as it is.
        limit: Unpack only the first tasks in order of their names.

    Returns:
        Task directories by task name (`path` in the shard), in order of names.

    Raises:
        InvalidInputError: if a shard cannot be read, a name comes twice, or an archive is refused.
    """
    shards = [root] if root.is_file() else sorted(root.rglob("*.parquet"))
    owners = _task_names(shards)
    wanted = set(sorted(owners)[:limit])
    found: dict[str, Path] = {}
    for shard in shards:
        if any(owners[name] == shard for name in wanted):
            found |= _unpack_shard(shard, wanted, cache_dir)
    return dict(sorted(found.items()))


def _task_names(shards: list[Path]) -> dict[str, Path]:
    """The shard that holds each task."""
    import pyarrow.parquet as pq  # noqa: PLC0415  only sets in this format need it

    owners: dict[str, Path] = {}
    for shard in shards:
        try:
            schema = pq.read_schema(shard).names
            missing = [column for column in _COLUMNS if column not in schema]
            if missing:
                msg = f"{shard} has no column {' and no column '.join(missing)}; a shard of tasks needs {_COLUMNS}"
                raise InvalidInputError(msg)
            names = pq.read_table(shard, columns=["path"])["path"].to_pylist()
        except (OSError, ValueError) as exc:
            raise InvalidInputError(f"{shard} is no readable parquet file: {exc}") from exc
        for name in names:
            if name in owners:
                msg = f"task {name!r} comes twice, in {owners[name]} and {shard}; names must be unique in a set"
                raise InvalidInputError(msg)
            owners[name] = shard
    return owners


def _unpack_shard(shard: Path, wanted: set[str], cache_dir: Path) -> dict[str, Path]:
    import pyarrow.parquet as pq  # noqa: PLC0415

    found = {}
    for batch in pq.ParquetFile(shard).iter_batches(batch_size=16, columns=list(_COLUMNS)):
        for row in batch.to_pylist():
            if row["path"] in wanted:
                found[row["path"]] = _unpack(row["path"], row["task_binary"], cache_dir)
    return found


def _unpack(name: str, archive: bytes, cache_dir: Path) -> Path:
    """Unpack one archive once; a folder in the cache is always complete, as it comes there by a rename."""
    target = cache_dir / hashlib.sha256(archive).hexdigest()[:32]
    if not target.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".unpack-", dir=cache_dir))
        try:
            _extract(archive, scratch)
            scratch.rename(target)
        except (tarfile.TarError, OSError, EOFError) as exc:
            if not target.exists():  # another process may have been first
                raise InvalidInputError(
                    f"task {name!r}: its task_binary is no archive that can be used: {exc}"
                ) from exc
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return _task_root(target)


def _extract(archive: bytes, target: Path) -> None:
    """Extract with tarfile's `data` filter: nothing lands outside, no devices, no special bits."""
    num_bytes = num_files = 0
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            num_bytes, num_files = num_bytes + member.size, num_files + 1
            if num_bytes > _MAX_TASK_BYTES or num_files > _MAX_TASK_FILES:
                msg = f"it unpacks to more than {_MAX_TASK_BYTES} bytes or {_MAX_TASK_FILES} files"
                raise tarfile.TarError(msg)
            tar.extract(member, target, filter="data")


def _task_root(folder: Path) -> Path:
    """The task may stand in one folder of its own inside the archive."""
    entries = list(folder.iterdir())
    if len(entries) == 1 and entries[0].is_dir() and entries[0].name not in {"tests", "environment", "solution"}:
        return entries[0]
    return folder
