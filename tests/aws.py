"""AWS as moto plays it, over HTTP, for whatever uses boto3."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests
from moto.server import ThreadedMotoServer

AWS_REGION = "eu-central-1"
AWS_ACCOUNT = "123456789012"
ECR_HOST = f"{AWS_ACCOUNT}.dkr.ecr.{AWS_REGION}.amazonaws.com"


@contextmanager
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty AWS on a free port; boto3 in this process and in its children finds it. Yields its URL."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    requests.post(f"{url}/moto-api/reset", timeout=10).raise_for_status()  # its state belongs to the process
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", AWS_REGION)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    try:
        yield url
    finally:
        server.stop()
