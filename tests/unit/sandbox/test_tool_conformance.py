"""Every tool of every server keeps the same promises, whatever it is called with."""

import asyncio
import io
import json
import shutil
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, ImageContent, TextContent

from seatrial_sandbox.servers import BUILDERS, SERVERS
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace
from tests.office_workspace import CALLS, furnish

EVERY_TOOL = [(server, tool) for server, tools in CALLS.items() for tool in tools]
MAX_ANSWER_BYTES = 110_000
FILE_ARGUMENTS = ("path", "image")
OFFICE = ("a.docx", "a.xlsx", "a.pptx")
READERS = {
    ".docx": ("docs", "read_doc", {}),
    ".xlsx": ("sheets", "list_tabs", {}),
    ".pptx": ("slides", "list_slides", {}),
    ".pdf": ("pdf", "read_pdf_pages", {}),
    ".png": ("pdf", "read_image", {}),
}

type Call = Callable[..., Awaitable[tuple[bool, str]]]


@pytest.fixture(scope="module")
def workspace() -> Workspace:
    return Workspace(Path("/nowhere"))


@pytest.fixture(scope="module")
def servers(workspace: Workspace) -> dict[str, ToolServer]:
    return {name: build(workspace) for name, build in BUILDERS.items()}


@pytest.fixture
def office(workspace: Workspace, tmp_path: Path) -> Iterator[Path]:
    """A fresh office that the servers work on."""
    workspace.root = tmp_path / "office"
    furnish(workspace.root)
    yield workspace.root
    shutil.rmtree(workspace.root)


@pytest.fixture
def call(servers: dict[str, ToolServer], office: Path) -> Call:
    """Calls a tool and holds every answer to what all must keep."""

    async def run(server: str, tool: str, **arguments: object) -> tuple[bool, str]:
        async with Client(servers[server]) as client:
            return kept_promises(await client.call_tool(tool, arguments), office)

    return run


def kept_promises(result: CallToolResult, office: Path) -> tuple[bool, str]:
    """One answer, never empty, never a traceback, never a path of the host, never without end."""
    (content,) = result.content
    if isinstance(content, ImageContent):
        assert not result.is_error
        assert len(content.data) < 8_000_000
        return False, content.mime_type
    assert isinstance(content, TextContent)
    assert content.text.strip()
    assert content.text != "None"
    assert "Traceback" not in content.text
    assert str(office) not in content.text
    assert len(content.text.encode()) < MAX_ANSWER_BYTES
    return bool(result.is_error), content.text


def properties(server: ToolServer, tool: str) -> dict[str, Any]:
    found: dict[str, Any] = server.parameters[tool].get("properties", {})
    return found


def test_every_tool_is_held_to_these_promises(servers: dict[str, ToolServer]) -> None:
    assert {name: set(servers[name].parameters) for name in SERVERS} == {name: set(CALLS[name]) for name in CALLS}


@pytest.mark.parametrize("server", sorted(BUILDERS))
def test_every_schema_has_types_and_descriptions_and_nothing_for_nobody(
    servers: dict[str, ToolServer], server: str
) -> None:
    for tool, schema in servers[server].parameters.items():
        assert len(servers[server].describe(tool)) > 10
        for facts in properties(servers[server], tool).values():
            assert facts["description"]
            assert "type" in facts or "enum" in facts
        assert "title" not in str(schema.keys())


@pytest.mark.parametrize(("server", "tool"), EVERY_TOOL)
async def test_a_right_call_succeeds(call: Call, server: str, tool: str) -> None:
    is_error, text = await call(server, tool, **CALLS[server][tool])
    assert not is_error, text


@pytest.mark.parametrize(("server", "tool"), EVERY_TOOL)
async def test_a_wrong_call_says_what_the_tool_takes(
    call: Call, servers: dict[str, ToolServer], server: str, tool: str
) -> None:
    right = CALLS[server][tool]
    is_error, text = await call(server, tool, **right, no_such_argument=1)
    assert is_error
    assert f"takes no argument 'no_such_argument'; {tool} takes: " in text
    for missing in servers[server].parameters[tool].get("required", []):
        is_error, text = await call(server, tool, **{name: right[name] for name in right if name != missing})
        assert is_error
        assert f"{missing}: Field required; {tool} takes: " in text
    for name in properties(servers[server], tool):
        is_error, text = await call(server, tool, **{**right, name: {"a": object.__name__}})
        assert is_error
        assert name in text


@pytest.mark.parametrize(("server", "tool"), [pair for pair in EVERY_TOOL if pair[0] != "code"])
async def test_no_tool_leaves_the_workspace(call: Call, office: Path, server: str, tool: str) -> None:
    """By traversal, by an absolute path, or through a link to a good file."""
    right = CALLS[server][tool]
    outside = office.parent / "outside"
    furnish(outside)
    for argument in (name for name in FILE_ARGUMENTS if name in right):
        name = Path(str(right[argument])).name
        (office / "link").unlink(missing_ok=True)
        (office / "link").symlink_to(outside, target_is_directory=True)
        (office / f"l-{name}").symlink_to(outside / name)
        before = {file: file.read_bytes() for file in outside.rglob("*") if file.is_file()}
        for path in (f"x/../../outside/{name}", f"link/{name}", f"l-{name}"):
            is_error, text = await call(server, tool, **{**right, argument: path})
            assert is_error
            assert "outside the workspace" in text or "symbolic link" in text
            assert {file: file.read_bytes() for file in outside.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(("server", "tool"), [pair for pair in EVERY_TOOL if pair[0] not in {"code", "filesystem"}])
async def test_a_damaged_file_is_called_damaged(call: Call, office: Path, server: str, tool: str) -> None:
    right = CALLS[server][tool]
    for argument in (name for name in FILE_ARGUMENTS if name in right):
        file = office / str(right[argument])
        if not file.exists() or file.suffix == ".csv":
            continue
        good = file.read_bytes()
        for data in (b"\0" * 1000, good[: len(good) // 2]):
            file.write_bytes(data)
            is_error, text = await call(server, tool, **right)
            assert is_error, (argument, data[:10], text)
            assert "damaged" in text
            assert file.read_bytes() == data
        file.write_bytes(good)


@pytest.mark.parametrize(("server", "tool"), EVERY_TOOL)
async def test_huge_arguments_end_in_an_answer_of_bounded_size(
    call: Call, servers: dict[str, ToolServer], server: str, tool: str
) -> None:
    huge = "x|# \n" * 10_000
    for name, facts in properties(servers[server], tool).items():
        if facts.get("type") == "string" and "enum" not in facts:
            await call(server, tool, **{**CALLS[server][tool], name: huge})


@pytest.mark.parametrize("name", OFFICE)
async def test_a_zip_bomb_is_not_unpacked(call: Call, office: Path, name: str) -> None:
    with zipfile.ZipFile(office / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.xml", b"0" * 100_000_000)
    server, tool, more = READERS[Path(name).suffix]
    is_error, text = await call(server, tool, path=name, **more)
    assert is_error
    assert "unpacks to 300000000 bytes" in text


@pytest.mark.parametrize("name", OFFICE)
async def test_external_and_nested_entities_are_not_resolved(call: Call, office: Path, name: str) -> None:
    (office.parent / "secret.txt").write_text("the secret")
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    outside = f'<!DOCTYPE x [<!ENTITY s SYSTEM "file://{office.parent}/secret.txt"><!ENTITY e0 "ha">{entities}]>'
    server, tool, more = READERS[Path(name).suffix]
    good = (office / name).read_bytes()
    for entity in ("&s;", "&e9;"):
        (office / name).write_bytes(edited(good, lambda text, entity=entity: poisoned(text, outside, entity)))
        _, text = await call(server, tool, path=name, **more)
        assert "the secret" not in text
        assert "haha" not in text


def poisoned(text: str, declarations: str, entity: str) -> str:
    """XML with declarations, and an entity in place of its texts."""
    head, mark, rest = text.partition("?>")
    body = rest if mark else head
    for tag in ("w:t", "a:t", "t", "v"):
        body = body.replace(f"<{tag}>", f"<{tag}>{entity}")
    return f"{head}?>{declarations}{body}" if mark else declarations + body


def edited(package: bytes, edit: Callable[[str], str]) -> bytes:
    """A package with its parts of text changed."""
    data = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(package)) as old, zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            content = old.read(member)
            is_text = any(part in member.filename for part in ("document.xml", "sheet1.xml", "slide1.xml", "shared"))
            new.writestr(member.filename, edit(content.decode()) if is_text else content)
    return data.getvalue()


async def test_a_workbook_that_reaches_to_the_last_cell_is_not_walked_through(call: Call, office: Path) -> None:
    good = (office / "a.xlsx").read_bytes()
    (office / "a.xlsx").write_bytes(
        edited(good, lambda text: text.replace('r="B2"', 'r="XFD1048576"').replace('<row r="2"', '<row r="1048576"'))
    )
    is_error, text = await call("sheets", "read_tab", path="a.xlsx")
    assert is_error
    assert "too far to read" in text


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("mail/Inbox.mbox", b"\0\xff" * 1000),
        ("mail/Inbox.mbox", b"From x\n" * 1000),
        ("mail/Inbox.mbox", b"From x\nDate: \xff\xfe\nFrom: =?bad?Q?=\nContent-Type: x/;;\n\n\xff"),
        ("mail/account.json", b'{"name": 1}'),
        ("chat/users.json", b"[{}]"),
        ("chat/channels.json", b'[{"name": "../../x"}]'),
        ("chat/channels/general.jsonl", b'{"id": "x"}\n'),
        ("calendar/work.ics", b"BEGIN:VCALENDAR\nBEGIN:VEVENT\n"),
        ("calendar/work.ics", b"BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VEVENT\nEND:VCALENDAR\n"),
    ],
)
async def test_damaged_stores_end_in_an_answer(call: Call, office: Path, path: str, data: bytes) -> None:
    (office / path).write_bytes(data)
    server = path.partition("/")[0]
    for tool, arguments in CALLS[server].items():
        await call(server, tool, **arguments)


async def test_an_event_that_repeats_for_ever_is_listed_within_bounds(call: Call, office: Path) -> None:
    calendar = (office / "calendar/work.ics").read_text().replace("FREQ=WEEKLY;COUNT=4", "FREQ=SECONDLY")
    (office / "calendar/work.ics").write_text(calendar)
    is_error, text = await call("calendar", "list_events", first="2026-03-02", last="2026-03-02")
    assert not is_error
    assert text.count("Standup") <= 1000


async def test_a_picture_of_a_hundred_million_pixels_is_not_opened(call: Call, office: Path) -> None:
    from PIL import Image  # noqa: PLC0415

    Image.new("1", (10_000, 10_000)).save(office / "huge.png")
    is_error, text = await call("pdf", "read_image", path="huge.png")
    assert is_error
    assert "damaged" in text or "too many to open" in text


@pytest.mark.parametrize(
    ("writing", "arguments", "reading", "look"),
    [
        ("sheets.append_row", {"path": "a.csv", "values": ["@", "1"]}, "read_tab", {"path": "a.csv"}),
        ("sheets.append_row", {"path": "a.xlsx", "values": ["@", "1"]}, "read_tab", {"path": "a.xlsx"}),
        ("docs.append_content", {"path": "a.docx", "markdown": "@"}, "read_doc", {"path": "a.docx"}),
        ("slides.add_slide", {"path": "a.pptx", "title": "@"}, "list_slides", {"path": "a.pptx"}),
        ("mail.send_mail", {"to": ["a@b.example"], "subject": "@", "body": ""}, "list_mails", {"folder": "Sent"}),
        ("chat.post_message", {"channel": "general", "text": "@"}, "get_channel_history", {"channel": "general"}),
        (
            "calendar.create_event",
            {"title": "@", "start": "2026-03-05", "end": "2026-03-05"},
            "list_events",
            {"first": "2026-03-05", "last": "2026-03-05"},
        ),
    ],
)
async def test_what_is_written_at_the_same_time_is_all_there(
    call: Call, writing: str, arguments: dict[str, Any], reading: str, look: dict[str, Any]
) -> None:
    server, _, tool = writing.partition(".")
    names = [f"Name {number}!" for number in range(6)]
    async with asyncio.TaskGroup() as group:
        for name in names:
            filled = json.loads(json.dumps(arguments).replace('"@"', f'"{name}"'))
            group.create_task(succeeds(call, server, tool, **filled))
    is_error, text = await call(server, reading, **look)
    assert not is_error
    assert sorted(name for name in names if name in text) == names


async def succeeds(call: Call, server: str, tool: str, **arguments: object) -> None:
    is_error, text = await call(server, tool, **arguments)
    assert not is_error, text


@pytest.mark.parametrize(("server", "tool"), EVERY_TOOL)
async def test_the_meta_surface_does_the_same(call: Call, server: str, tool: str) -> None:
    is_error, text = await call(f"{server}-meta", "schema", action=tool)
    assert not is_error
    assert "properties" in text
    is_error, text = await call(f"{server}-meta", "do", action=tool, arguments={"no_such_argument": 1})
    assert is_error
    assert f"{tool} takes" in text


async def test_the_meta_surface_passes_on_answers_errors_and_pictures(call: Call) -> None:
    assert await call("docs-meta", "do", action="outline", arguments={"path": "a.docx"}) == (False, "p0 Contract")
    assert await call("pdf-meta", "do", action="read_image", arguments={"path": "logo.png"}) == (False, "image/png")
    is_error, text = await call("chat-meta", "do", action="dance")
    assert is_error
    assert "the tools are: list_channels" in text
    is_error, text = await call("chat-meta", "schema", action="dance")
    assert is_error
    assert "the actions are: list_channels" in text
