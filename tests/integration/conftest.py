from collections.abc import Iterator

import pytest

from tests.object_stores import KEYS, Bucket


@pytest.fixture(scope="session")
def server() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.close()


@pytest.fixture
def bucket(server: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket; whatever uses AWS's usual credentials may use it."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    server.empty()
    return server
