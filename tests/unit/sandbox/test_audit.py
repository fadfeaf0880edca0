import pytest

from seatrial_sandbox.state.audit import FindingKind, findings, media_type
from seatrial_sandbox.state.changes import Change, ChangeKind
from seatrial_sandbox.state.manifest import Entry, EntryType

PLACES = ["workspace", "tmp"]


def found(path: str, entry: Entry, head: bytes = b"") -> list[tuple[FindingKind, str]]:
    change = Change(ChangeKind.ADDED, path, None, entry)
    return [(finding.kind, finding.detail) for finding in findings(change, head, PLACES)]


def file(mode: int = 0o644, size: int = 10) -> Entry:
    return Entry(EntryType.FILE, mode, size, "00")


def test_an_ordinary_text_is_not_remarkable() -> None:
    assert found("workspace/notes.txt", file(), b"Buy tea.") == []


def test_programs_are_found_by_permissions_and_by_content() -> None:
    assert found("workspace/run", file(0o755)) == [(FindingKind.EXECUTABLE, "by its permissions")]
    assert found("workspace/run", file(), b"\x7fELF...") == [(FindingKind.EXECUTABLE, "an ELF program")]


def test_files_that_run_as_somebody_else_are_found() -> None:
    assert (FindingKind.SETUID, "mode 4644") in found("workspace/x", file(0o4644))
    assert (FindingKind.SETUID, "mode 2755") in found("workspace/d", Entry(EntryType.FOLDER, 0o2755))


def test_a_disguise_is_seen_through() -> None:
    kinds = [kind for kind, _ in found("workspace/report.pdf", file(), b"\x7fELF")]
    assert kinds == [FindingKind.EXECUTABLE, FindingKind.DISGUISED]


@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc/passwd", "/tmpfoo"])
def test_links_that_lead_out_are_found(target: str) -> None:
    assert found("workspace/l", Entry(EntryType.LINK, 0o777, target=target))[0][0] is FindingKind.OUTWARD_LINK


@pytest.mark.parametrize("target", ["notes", "../tmp/x", "/workspace/a"])
def test_links_that_stay_are_not(target: str) -> None:
    assert found("workspace/l", Entry(EntryType.LINK, 0o777, target=target)) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"-----BEGIN " + b"OPENSSH PRIVATE KEY-----", "private key"),
        (b"id = AKIA" + b"ABCDEFGHIJKLMNOP", "AWS access key"),
        (b"ghp_" + b"a" * 36, "GitHub token"),
        (b"sk-ant-" + b"a1B2" * 10, "OpenAI or Anthropic key"),
        (b"postgres://me:hunter2@db/x", "password in a URL"),
        (b'api_key = "' + b'abcdefgh1234"', "password"),
    ],
)
def test_secrets_are_named_with_their_line_and_never_shown(text: bytes, name: str) -> None:
    ((kind, detail),) = found("workspace/a.txt", file(), b"one\n" + text + b"\n")
    assert (kind, detail) == (FindingKind.SECRET, f"{name}, line 2")


def test_large_and_special_files_are_found() -> None:
    assert found("workspace/big", file(size=1 << 30))[0][0] is FindingKind.LARGE_FILE
    assert found("workspace/s", Entry(EntryType.SPECIAL, 0o600))[0][0] is FindingKind.SPECIAL_FILE


def test_types_are_told_by_content_first() -> None:
    assert media_type("a.txt", b"\x7fELF") == "program (an ELF program)"
    assert [media_type("a.csv", b"1,2"), media_type("a", b"\0"), media_type("a", b"x")] == [".csv", "binary", "text"]
