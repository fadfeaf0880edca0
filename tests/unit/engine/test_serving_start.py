"""What a pool's serving process needs before it serves."""

from pathlib import Path

import pytest
import structlog

from seatrial_api.serving import TOKEN_VARIABLE, ServingRequest
from seatrial_rollout.serving.__main__ import main
from tests.pools import pool


def test_nothing_is_served_without_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pool().spec.model
    assert model is not None
    request = ServingRequest(pool="office", model=model, engines=pool().spec.engines, base_dir=tmp_path)
    (tmp_path / "pool.json").write_text(request.model_dump_json(by_alias=True))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with structlog.testing.capture_logs() as logs:
        assert main(["--request", str(tmp_path / "pool.json")]) == 1
    assert "without a token anybody could use the engines" in logs[-1]["error"]


def test_a_request_that_is_not_there_is_told(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        assert main(["--request", str(tmp_path / "none.json")]) == 1
    assert "none.json" in logs[-1]["error"]
