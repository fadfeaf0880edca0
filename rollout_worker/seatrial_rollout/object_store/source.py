"""A model or a task set that lies in S3, as a folder on this machine."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.model import S3Source
from seatrial_rollout.object_store.store import ObjectStore, StoredObject

_PARALLEL_FILES = 8


def fetch_source(source: S3Source, cache_dir: Path) -> Path:
    """The folder with what lies under a prefix now; what has not changed since the last time is not fetched again.

    Args:
        source: The prefix.
        cache_dir: Folder for all such folders; each prefix has one of its own in it.

    Raises:
        InvalidInputError: if nothing lies there, or the store refuses.
        StoreUnavailableError: if the store does not answer.
    """
    store = ObjectStore.of(source)
    digest = hashlib.sha256(f"{source.endpoint_url} {store.uri()}".encode()).hexdigest()[:16]
    folder = cache_dir / "s3" / digest
    objects = [stored for stored in store.objects() if not stored.key.endswith("/")]
    if not objects:
        raise InvalidInputError(f"{store.uri()} holds no object; correct the URI or upload the files")
    index = folder.with_suffix(".json")
    known: dict[str, str] = json.loads(index.read_text()) if index.exists() else {}
    for name in known.keys() - {stored.key for stored in objects}:
        (folder / name).unlink(missing_ok=True)

    def fetch(stored: StoredObject) -> None:
        path = stored.below(folder)
        if known.get(stored.key) != stored.etag or not path.exists():
            store.fetch(stored, path)
            if path.suffix == ".sh":  # S3 keeps no modes, and a task's scripts have to run
                path.chmod(0o755)

    with ThreadPoolExecutor(_PARALLEL_FILES) as threads:
        list(threads.map(fetch, objects))
    index.write_text(json.dumps({stored.key: stored.etag for stored in objects}))
    return folder
