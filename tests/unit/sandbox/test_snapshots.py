import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial_sandbox.errors import SandboxDataError, SandboxLimitError, SandboxPathError, SandboxStateError
from seatrial_sandbox.state import archive
from seatrial_sandbox.state.changes import changes
from seatrial_sandbox.state.manifest import Entry, EntryType, Hasher, Manifest, scan
from seatrial_sandbox.state.restore import restore

SHA = hashlib.sha256(b"x").hexdigest()


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def state(root: Path) -> Manifest:
    return scan(root / "work", Hasher(), prefix="work")


def packed(root: Path, known: set[str] = frozenset()) -> tuple[io.BytesIO, archive.Packed]:  # type: ignore[assignment]  # empty
    out = io.BytesIO()
    return out, archive.pack(state(root), root, out, known=known)


def made(members: list[tuple[str, bytes]], **header: object) -> io.BytesIO:
    """An archive that holds whatever it is told to."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as stream:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in header.items():
                setattr(info, field, value)
            stream.write(info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512))
        stream.write(bytes(1024))
    return out


def listing(*rows: list[object]) -> tuple[str, bytes]:
    return "manifest.json", json.dumps(rows).encode()


def test_equal_trees_have_equal_names_and_any_difference_another(tmp_path: Path) -> None:
    one, two = (
        tree(tmp_path / "one", {"work/a": "1", "work/b/c": "2"}),
        tree(tmp_path / "two", {"work/b/c": "2", "work/a": "1"}),
    )
    assert state(one).snapshot == state(two).snapshot
    (two / "work/a").chmod(0o755)
    assert state(one).snapshot != state(two).snapshot


def test_a_restore_brings_back_contents_kinds_modes_and_links(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "root", {"work/kept": "same", "work/gone": "back", "work/dir/deep": "deep", "work/was": "file"}
    )
    (root / "work/link").symlink_to("/anywhere")
    (root / "work/dir").chmod(0o500)
    before, (content, _) = state(root), packed(root)
    (root / "work/dir").chmod(0o700)
    (root / "work/gone").unlink()
    (root / "work/was").unlink()
    tree(root, {"work/was/folder": "now", "work/new": "extra", "work/kept": "other"})
    restore([content], before.snapshot, state(root), root, ["work"])
    assert state(root).snapshot == before.snapshot
    (root / "work/dir").chmod(0o700)


def test_an_incremental_archive_holds_what_is_new_and_needs_its_base(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", {"work/a": "a" * 9, "work/b": "b"})
    base, first = packed(root)
    tree(root, {"work/c": "c", "work/copy": "a" * 9})
    rest, second = packed(root, first.manifest.hashes)
    assert (first.blobs, second.blobs) == (2, 1)
    other = tree(tmp_path / "other", {"work/junk": "junk"})
    with pytest.raises(SandboxStateError, match="2 contents"):
        restore([rest], second.manifest.snapshot, state(other), other, ["work"])
    assert (other / "work/junk").exists()  # refused before anything was touched
    restore([base, rest], second.manifest.snapshot, state(other), other, ["work"])
    assert state(other).snapshot == second.manifest.snapshot


def test_what_the_world_has_already_need_not_be_sent(tmp_path: Path) -> None:
    world = {"work/big": "w" * 100}
    root = tree(tmp_path / "root", world)
    known = state(root).hashes
    tree(root, {"work/new": "n"})
    delta, snapshot = packed(root, known)
    fresh = tree(tmp_path / "fresh", world)
    restore([delta], snapshot.manifest.snapshot, state(fresh), fresh, ["work"])
    assert state(fresh).snapshot == snapshot.manifest.snapshot


def test_what_was_only_moved_or_exchanged_need_not_be_sent(tmp_path: Path) -> None:
    world = {"work/a": "1", "work/b": "2", "work/c/d": "3"}
    one, two = tree(tmp_path / "one", world), tree(tmp_path / "two", world)
    known = state(one).hashes
    (one / "work/a").rename(one / "work/aside")
    (one / "work/b").rename(one / "work/a")
    (one / "work/aside").rename(one / "work/b")
    (one / "work/c").rename(one / "work/e")
    out, done = packed(one, known)
    assert done.blobs == 0
    restore([out], done.manifest.snapshot, state(two), two, ["work"])
    assert state(two) == state(one)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "work/../../x", "", ".", "work//x", "work/./x", "a\0b", "x/" * 80 + "x", "nofolder/x"],
)
def test_a_path_that_leads_out_is_refused_before_anything_is_written(path: str) -> None:
    with pytest.raises(SandboxDataError):
        archive.check(
            made([("blobs/" + SHA, b"x"), listing(["work", "Folder", 493, 0, "", ""], [path, "File", 420, 1, SHA, ""])])
        )


def test_a_file_below_a_link_of_the_same_archive_is_refused() -> None:
    rows = [["work", "Link", 511, 0, "", "/etc"], ["work/passwd", "File", 420, 1, SHA, ""]]
    with pytest.raises(SandboxDataError, match="lies in no folder"):
        archive.check(made([("blobs/" + SHA, b"x"), listing(*rows)]))


def test_a_link_that_waits_where_the_archive_has_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    root = tree(tmp_path / "root", {"work/dir/file": "x"})
    content, snapshot = packed(root)
    target = tree(tmp_path / "target", {"work/other": ""})
    (target / "work/dir").symlink_to(tmp_path / "outside")
    with pytest.raises(SandboxPathError):
        archive.unpack([content], snapshot.manifest.entries, target)
    assert not list((tmp_path / "outside").iterdir())


def test_a_snapshot_of_other_places_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", {"work/a": "1"})
    content, snapshot = packed(root)
    with pytest.raises(SandboxPathError, match="may not be written"):
        restore([content], snapshot.manifest.snapshot, Manifest({}), root, ["elsewhere"])


@pytest.mark.parametrize(
    ("hostile", "error"),
    [
        pytest.param(lambda: io.BytesIO(b"not zstd"), SandboxDataError, id="garbage"),
        pytest.param(lambda: made([]), SandboxDataError, id="no list"),
        pytest.param(lambda: made([("blobs/" + SHA, b"y"), listing()]), SandboxDataError, id="wrong hash"),
        pytest.param(lambda: made([("evil.sh", b"x"), listing()]), SandboxDataError, id="foreign member"),
        pytest.param(lambda: made([listing()], type=tarfile.SYMTYPE), SandboxDataError, id="a link member"),
        pytest.param(lambda: made([("manifest.json", b"[" * 100_000)]), SandboxDataError, id="deep json"),
        pytest.param(
            lambda: made([listing(["f", "File", 420, 1 << 50, SHA, ""])]), SandboxLimitError, id="huge by its list"
        ),
        pytest.param(lambda: made([("blobs/x", b"")], size=8**11 - 1), SandboxDataError, id="huge by its header"),
    ],
)
def test_a_hostile_archive_is_refused(hostile: object, error: type[Exception]) -> None:
    with pytest.raises((error, SandboxLimitError)):
        archive.check(hostile())  # type: ignore[operator]  # a parameter


def test_a_bomb_is_stopped_at_its_bound_not_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 1 << 20)
    zeros = bytes(1 << 19)
    bomb = made([("blobs/" + hashlib.sha256(zeros).hexdigest(), zeros)] * 1000)
    assert len(bomb.getvalue()) < 1 << 20
    with pytest.raises(SandboxLimitError):
        archive.check(bomb)


def test_a_truncated_archive_is_told(tmp_path: Path) -> None:
    content, _ = packed(tree(tmp_path, {"work/a": "1" * 5000}))
    with pytest.raises(SandboxDataError):
        archive.check(io.BytesIO(content.getvalue()[:-40]))


def test_what_an_agent_locks_away_is_seen_all_the_same(tmp_path: Path) -> None:
    root = tree(tmp_path, {"work/hidden/secret": "s", "work/locked": "l"})
    (root / "work/locked").chmod(0)
    (root / "work/hidden").chmod(0)
    entries = state(root).entries
    assert entries["work/hidden/secret"].sha256 == hashlib.sha256(b"s").hexdigest()
    assert entries["work/locked"] == Entry(EntryType.FILE, 0, 1, hashlib.sha256(b"l").hexdigest())
    assert (root / "work/hidden").stat().st_mode & 0o777 == 0
    (root / "work/hidden").chmod(0o700)


def test_folders_that_never_end_are_counted_not_followed(tmp_path: Path) -> None:
    here = tmp_path / "work"
    here.mkdir()
    for _ in range(100):
        here /= "d"
        here.mkdir()
    found = state(tmp_path)
    assert found.omitted == 1
    assert len(found.entries) == 64


def test_special_files_and_links_are_named_and_never_opened(tmp_path: Path) -> None:
    root = tree(tmp_path, {"work/a": ""})
    os.mkfifo(root / "work/pipe")
    (root / "work/loop").symlink_to("loop")
    entries = state(root).entries
    assert entries["work/pipe"].type is EntryType.SPECIAL
    assert (entries["work/loop"].type, entries["work/loop"].target) == (EntryType.LINK, "loop")


names = st.text("ab.- é\udcff", min_size=1, max_size=4).filter(lambda name: name not in {".", ".."})


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(names, st.binary(max_size=64), max_size=6),
    st.dictionaries(names, st.binary(max_size=64), max_size=6),
)
def test_any_state_can_be_made_of_any_other(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, bytes], two: dict[str, bytes]
) -> None:
    roots = []
    for contents in (one, two):
        root = tmp_path_factory.mktemp("root")
        (root / "work").mkdir()
        for name, data in contents.items():
            (root / "work" / name).write_bytes(data)
        roots.append(root)
    content, snapshot = packed(roots[0])
    assert list(changes(snapshot.manifest, Manifest.from_json(snapshot.manifest.to_json()))) == []
    restore([content], snapshot.manifest.snapshot, state(roots[1]), roots[1], ["work"])
    assert state(roots[1]).snapshot == snapshot.manifest.snapshot
