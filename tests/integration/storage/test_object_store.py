import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.model import S3Source
from seatrial_rollout.object_store.errors import ObjectMissingError, StoreUnavailableError
from seatrial_rollout.object_store.store import ObjectStore
from seatrial_trainer.storage.atomic import write_atomic
from tests.object_stores import AnyBucket, Bucket

BIG = 40 << 20
"""Bytes of a file that goes in three parts."""

UPLOAD_AND_HANG = """
import sys, threading
from pathlib import Path
from seatrial_api.spec.model import S3Source
from seatrial_rollout.object_store.store import ObjectStore

store = ObjectStore.of(S3Source.model_validate_json(sys.argv[1]))

def hang_at_the_second_part(params, **_):
    if params["query_string"]["partNumber"] == 2:
        print("half-way", flush=True)
        threading.Event().wait()

store._client.meta.events.register("before-call.s3.UploadPart", hang_at_the_second_part)
store.put("big", Path(sys.argv[2]))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


def big_file(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(1 << 20) * (BIG >> 20))
    return path


def fetched(store: ObjectStore, key: str, path: Path) -> bytes:
    (stored,) = [one for one in store.objects(key) if one.key == key]
    store.fetch(stored, path)
    return path.read_bytes()


def test_what_was_put_is_listed_and_comes_back(each_bucket: AnyBucket, file: Path, tmp_path: Path) -> None:
    store = each_bucket.store()
    store.put("a/one", file)
    store.put("b/two", file)
    assert [(stored.key, stored.size) for stored in store.objects()] == [("a/one", 7), ("b/two", 7)]
    assert store.folders() == ["a", "b"]
    assert store.get("a/one") == b"content"
    assert fetched(store, "b/two", tmp_path / "new" / "copy") == b"content"
    store.move("a/one", "c/one")
    store.delete(["b/two", "never-there"])
    assert each_bucket.stored_keys() == ["c/one"]
    with pytest.raises(ObjectMissingError, match="s3://runs/team/run/b/two"):
        store.get("b/two")


def test_stores_of_one_bucket_do_not_see_each_other(each_bucket: AnyBucket, file: Path) -> None:
    each_bucket.store("team/run").put("key", file)
    each_bucket.store("team/run-2").put("key", file)
    assert [stored.key for stored in each_bucket.store("team/run").objects()] == ["key"]


def test_a_big_file_goes_in_parts_and_comes_back_the_same(each_bucket: AnyBucket, tmp_path: Path) -> None:
    store = each_bucket.store()
    big = big_file(tmp_path)
    store.put("big", big)
    (stored,) = store.objects()
    assert stored.etag.endswith("-3"), "three parts"
    assert fetched(store, "big", tmp_path / "copy") == big.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_killed_upload_is_not_there_and_its_parts_can_be_dropped(each_bucket: AnyBucket, tmp_path: Path) -> None:
    arguments = [each_bucket.source().model_dump_json(by_alias=True), str(big_file(tmp_path))]
    with subprocess.Popen([sys.executable, "-c", UPLOAD_AND_HANG, *arguments], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"half-way\n"
        child.send_signal(signal.SIGKILL)
    store = each_bucket.store()
    assert list(store.objects()) == []
    assert each_bucket.unfinished() == ["team/run/big"]
    assert each_bucket.store("other").abort_unfinished() == 0, "another run's uploads are left alone"
    assert store.abort_unfinished() == 1
    assert each_bucket.unfinished() == []


def test_an_outage_is_ridden_out(bucket: Bucket, file: Path) -> None:
    store = bucket.store()
    with ThreadPoolExecutor() as threads:
        with bucket.out_of_order() as refused:
            putting = threads.submit(store.put, "key", file)
            assert refused.wait(30)
        putting.result(60)
    assert store.get("key") == b"content"


def test_a_lasting_outage_ends_the_call_and_the_next_one_at_once(bucket: Bucket, file: Path) -> None:
    store = bucket.store(patience_seconds=2.0)
    with bucket.out_of_order():
        with pytest.raises(StoreUnavailableError, match=r"not to be had for 2 s: s3://runs/team/run/key: .*503"):
            store.put("key", file)
        with pytest.raises(StoreUnavailableError):
            store.get("key")
    store.put("key", file)
    assert store.get("key") == b"content", "a store that is back is used again"


def test_a_store_that_hangs_is_given_up(bucket: Bucket, file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        endpoint = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        store = bucket.store(endpoint_url=endpoint, patience_seconds=0.1, stall_seconds=0.2)
        with pytest.raises(StoreUnavailableError, match="timeout"):
            store.put("key", file)


def test_a_bucket_that_is_not_there_is_bad_input(each_bucket: AnyBucket, file: Path) -> None:
    source = S3Source(uri="s3://nobodys/run", endpoint_url=each_bucket.url)
    with pytest.raises(InvalidInputError, match="make the bucket, or correct the URI"):
        ObjectStore.of(source).put("key", file)
    with pytest.raises(InvalidInputError, match="make the bucket"):
        list(ObjectStore.of(source).objects())


def test_no_credentials_are_bad_input(bucket: Bucket, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file.with_name("none")))
    with pytest.raises(InvalidInputError, match="set AWS_ACCESS_KEY_ID"):
        bucket.store().put("key", file)


def test_a_file_that_is_gone_is_no_outage(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bucket.store().put("key", tmp_path / "gone")


def test_a_file_that_is_replaced_meanwhile_is_stored_as_it_was_or_as_it_is(
    each_bucket: AnyBucket, tmp_path: Path
) -> None:
    store = each_bucket.store(stall_seconds=1.0, patience_seconds=5.0)
    manifest, contents = tmp_path / "MANIFEST.json", (b"before" * 100, b"after" * 10)
    write_atomic(manifest, contents[0])
    is_done = threading.Event()

    def replace_it() -> None:
        while not is_done.is_set():
            for content in contents:
                write_atomic(manifest, content)

    with ThreadPoolExecutor(1) as threads:
        replacing = threads.submit(replace_it)
        try:
            for _ in range(60):
                store.put("MANIFEST.json", manifest)
                assert store.get("MANIFEST.json") in contents
        finally:
            is_done.set()
        replacing.result()
