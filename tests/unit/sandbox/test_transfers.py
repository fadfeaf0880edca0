import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial_sandbox.daemon import transfers
from seatrial_sandbox.daemon.transfers import IDLE_SECONDS, Transfers, Upload
from seatrial_sandbox.errors import SandboxDataError, SandboxLimitError, SandboxStateError
from tests.clocks import HeldClock

DATA = b"0123456789"
SHA = hashlib.sha256(DATA).digest()


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


@pytest.fixture
def every(tmp_path: Path, clock: HeldClock) -> Iterator[Transfers]:
    transfers = Transfers(tmp_path, clock)
    yield transfers
    transfers.close()


@pytest.fixture
def upload(every: Transfers) -> Upload:
    upload, stream = every.open_upload("u", len(DATA), SHA, 0)
    upload.write(DATA[:4], stream)
    return upload


def test_an_upload_goes_on_where_it_stopped_and_nowhere_else(every: Transfers, upload: Upload) -> None:
    with pytest.raises(SandboxStateError, match="goes on at 4, not at 6"):
        every.open_upload("u", len(DATA), SHA, 6)
    again, stream = every.open_upload("u", len(DATA), SHA, 4)
    again.write(DATA[4:], stream)
    again.check_complete()
    again.check_content()
    assert again is upload


def test_a_stream_that_was_thought_dead_writes_no_more(every: Transfers, upload: Upload) -> None:
    every.open_upload("u", len(DATA), SHA, 4)
    with pytest.raises(SandboxStateError, match="another stream"):
        upload.write(DATA[4:], 1)


def test_more_less_or_other_than_announced_is_refused(every: Transfers, upload: Upload) -> None:
    with pytest.raises(SandboxLimitError):
        upload.write(bytes(7), 1)
    with pytest.raises(SandboxStateError, match="4 of 10"):
        upload.check_complete()
    upload.write(b"abcdef", 1)
    with pytest.raises(SandboxDataError):
        upload.check_content()
    with pytest.raises(SandboxStateError, match="another size"):
        every.open_upload("u", 11, SHA, 10)


def test_nothing_in_the_spool_has_a_name(every: Transfers, upload: Upload, tmp_path: Path) -> None:
    every.offer(every.new_file())
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_touches_is_forgotten(every: Transfers, upload: Upload, clock: HeldClock) -> None:
    name = every.offer(every.new_file())
    clock.advance(IDLE_SECONDS + 1)
    every.forget_idle()
    assert not every.uploads
    with pytest.raises(SandboxStateError, match="take the snapshot again"):
        every.offered(name)


def test_all_transfers_together_have_a_bound(every: Transfers, upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "MAX_SPOOL_BYTES", 15)
    with pytest.raises(SandboxLimitError):
        every.open_upload("v", len(DATA), SHA, 0)
    every.drop_upload("u")
    every.open_upload("v", len(DATA), SHA, 0)
