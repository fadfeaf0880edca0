from collections.abc import Iterator

import pytest

from tests.object_stores import KEYS, AnyBucket, Bucket, RealBucket


@pytest.fixture(scope="session")
def server() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.close()


@pytest.fixture(scope="session")
def real_server() -> Iterator[RealBucket]:
    bucket = RealBucket()
    yield bucket
    bucket.close()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever uses AWS's usual credentials may use the buckets."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(server: Bucket, keys: None) -> Bucket:
    """An empty bucket that can be out of order."""
    server.empty()
    return server


@pytest.fixture
def real_bucket(real_server: RealBucket, keys: None) -> RealBucket:
    """An empty bucket of a real server."""
    real_server.empty()
    return real_server


@pytest.fixture(params=["bucket", "real_bucket"])
def each_bucket(request: pytest.FixtureRequest) -> AnyBucket:
    """One after the other."""
    found: AnyBucket = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def any_bucket(request: pytest.FixtureRequest) -> AnyBucket:
    """That of the real server where it was built."""
    found: AnyBucket = request.getfixturevalue("real_bucket" if RealBucket.PROGRAM.exists() else "bucket")
    return found
