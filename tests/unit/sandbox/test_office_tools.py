"""What the office servers make of documents, as other programs read them; the conformance suite has the rest."""

import shutil
from collections.abc import Awaitable, Callable
from email import message_from_bytes, policy
from hashlib import sha256
from pathlib import Path

import pytest
from docx import Document
from mcp import Client
from mcp.types import TextContent
from openpyxl import load_workbook
from pptx import Presentation

from seatrial_sandbox.servers import SERVERS
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace
from tests.office_workspace import furnish

type Ask = Callable[..., Awaitable[str]]


@pytest.fixture(scope="module")
def workspace() -> Workspace:
    return Workspace(Path("/nowhere"))


@pytest.fixture(scope="module")
def servers(workspace: Workspace) -> dict[str, ToolServer]:
    return {name: build(workspace) for name, build in SERVERS.items()}


@pytest.fixture
def office(workspace: Workspace, tmp_path: Path) -> Path:
    workspace.root = tmp_path / "office"
    furnish(workspace.root)
    return workspace.root


@pytest.fixture
def ask(servers: dict[str, ToolServer], office: Path) -> Ask:
    """Calls a tool, `server.tool`; an error's text begins with a sign of its own."""

    async def run(name: str, **arguments: object) -> str:
        server, _, tool = name.partition(".")
        async with Client(servers[server]) as client:
            result = await client.call_tool(tool, arguments)
        (content,) = result.content
        assert isinstance(content, TextContent)
        return f"! {content.text}" if result.is_error else content.text

    return run


async def test_markdown_becomes_styles_lists_and_tables(ask: Ask, office: Path) -> None:
    text = "# Report\n\nOne **bold** and *slanted*\nline.\n\n- a\n  - b\n1. c\n\n| x | y |\n|---|---|\n| 1 | a\\|b |\n"
    await ask("docs.create_doc", path="new.docx", markdown=text)
    document = Document(str(office / "new.docx"))
    assert [(p.style.name if p.style else "", p.text) for p in document.paragraphs] == [
        ("Heading 1", "Report"),
        ("Normal", "One bold and slanted line."),
        ("List Bullet", "a"),
        ("List Bullet 2", "b"),
        ("List Number", "c"),
    ]
    assert [run.text for run in document.paragraphs[1].runs if run.bold] == ["bold"]
    assert [[cell.text for cell in row.cells] for row in document.tables[0].rows] == [["x", "y"], ["1", "a|b"]]
    assert "t0 [Table, 2 rows]\n| x | y |\n| --- | --- |\n| 1 | a\\|b |" in await ask("docs.read_doc", path="new.docx")


async def test_content_lands_on_the_side_it_was_meant_for(ask: Ask) -> None:
    await ask("docs.insert_content", path="a.docx", element="t0", markdown="first\n\nsecond", where="before")
    await ask("docs.insert_content", path="a.docx", element="p0", markdown="third\n\nfourth")
    lines = (await ask("docs.read_doc", path="a.docx")).splitlines()
    assert [line.partition("] ")[2] for line in lines if line[0] == "p"] == [
        "Contract", "third", "fourth", "The terms are these.", "first", "second",
    ]  # fmt: skip


async def test_a_replaced_text_keeps_its_look_where_it_can(ask: Ask, office: Path) -> None:
    await ask("docs.create_doc", path="b.docx", markdown="pay **within 30 days** or else\n\nwithin **30** days")
    assert await ask("docs.replace_text", path="b.docx", old="30 days", new="14 days") == "replaced 2 times"
    first, second = Document(str(office / "b.docx")).paragraphs
    assert (first.text, [run.text for run in first.runs if run.bold]) == (
        "pay within 14 days or else",
        ["within 14 days"],
    )
    assert second.text == "within 14 days"
    assert "! 'sixty' is not in 'b.docx'" in await ask("docs.replace_text", path="b.docx", old="sixty", new="x")


async def test_an_id_that_leads_nowhere_says_how_many_there_are(ask: Ask) -> None:
    for element in ("p9", "t3", "t0.r9.c0"):
        answer = await ask("docs.set_text", path="a.docx", element=element, text="x")
        assert f"! there is no {element}; the document has 2 paragraphs and 1 tables" in answer
    assert "ids look like 'p3'" in await ask("docs.set_text", path="a.docx", element="body", text="x")


async def test_formulas_are_computed_at_once_and_for_whoever_reads_next(ask: Ask, office: Path) -> None:
    await ask("sheets.edit_cell", path="a.xlsx", row="bolt", column="count", value="50")
    assert await ask("sheets.lookup", path="a.xlsx", row="all", column="count") == "57"
    book = load_workbook(office / "a.xlsx", data_only=True)
    assert book["Stock"]["B4"].value == 57
    rows = [['=VLOOKUP("nut",A2:B3,2,FALSE)', '=SUMIFS(B2:B3,A2:A3,"bolt")', '=IF(B2>10,"many","few")', "=1/0"]]
    await ask("workbooks.write_cells", path="a.xlsx", cell="D1", rows=rows)
    assert await ask("sheets.read_tab", path="a.xlsx", range="D1:G1") == "7,50,many,#DIV/0!"
    assert "Stock!B4 =SUM(B2:B3)" in await ask("workbooks.read_formulas", path="a.xlsx")


async def test_a_workbook_whose_formulas_were_never_computed_is_computed_when_read(ask: Ask) -> None:
    """As openpyxl leaves it, or any program that does not compute."""
    assert await ask("sheets.lookup", path="a.xlsx", row="all", column="count") == "49"


async def test_a_formula_that_refers_to_itself_is_shown_as_it_is(ask: Ask) -> None:
    await ask("workbooks.write_cells", path="a.xlsx", cell="D1", rows=[["=D1+1"]])
    assert await ask("sheets.read_tab", path="a.xlsx", range="D1") == "=D1+1"


async def test_slides_move_and_go_without_harm_to_the_others(ask: Ask, office: Path) -> None:
    await ask("slides.add_slide", path="a.pptx", title="First", bullets=["a", "  b"], notes="hello", position=1)
    await ask("slides.move_slide", path="a.pptx", slide=3, to=2)
    assert await ask("slides.list_slides", path="a.pptx") == "1 First\n2 Figures\n3 The Plan"
    await ask("slides.delete_slide", path="a.pptx", slide=3)
    deck = Presentation(str(office / "a.pptx"))
    assert [slide.shapes.title.text for slide in deck.slides] == ["First", "Figures"]
    body = deck.slides[0].placeholders[1].text_frame.paragraphs
    assert [(paragraph.text, paragraph.level) for paragraph in body] == [("a", 0), ("b", 1)]
    assert "! there is no slide 7; the deck has 2" in await ask("slides.read_slide", path="a.pptx", slide=7)


async def test_a_table_of_a_pdf_keeps_its_columns(ask: Ask) -> None:
    text = "| quarter | sales | cost |\n|---|---|---|\n| Q1 Löß | 1,200 | |\n| Q2 | 900 | 400 |\n"
    await ask("pdf.create_pdf", path="b.pdf", markdown=f"# Figures\n\n{text}\n\n- a point")
    assert await ask("pdf.create_pdf", path="c.pdf", markdown="漢 x") == (
        "wrote c.pdf with 1 pages; its font has no letters for: 漢"
    )
    answer = await ask("pdf.read_pdf_pages", path="b.pdf")
    assert "| quarter | sales | cost |\n| --- | --- | --- |\n| Q1 Löß | 1,200 |  |\n| Q2 | 900 | 400 |" in answer
    assert "• a point" in answer
    assert "! there are no pages 4 to 1; the file has 1" in await ask("pdf.read_pdf_pages", path="b.pdf", first=4)


async def test_an_answer_quotes_names_everybody_and_follows_its_thread(ask: Ask, office: Path) -> None:
    await ask("mail.reply_all", mail_id="Inbox/1", body="Paid.\nFrom now on we pay sooner.", attachments=["a.pdf"])
    sent = await ask("mail.read_mail", mail_id="Sent/1")
    assert "To: ann@acme.example\nCc: bob@acme.example\n" in sent
    assert "Subject: Re: The invoice" in sent
    assert "Attachment: a.pdf (application/pdf)" in sent
    assert (
        "Paid.\nFrom now on we pay sooner.\n\nAnn Lee <ann@acme.example> wrote on 2026-02-02 09:00:\n> Please" in sent
    )
    raw = (office / "mail/Sent.mbox").read_bytes()
    message = message_from_bytes(raw.partition(b"\n")[2], policy=policy.default)
    assert message["In-Reply-To"] == "<first@acme.example>"
    assert message["Date"].datetime.isoformat() == "2026-02-02T09:01:00+00:00"


async def test_a_maildir_is_mail_as_well(ask: Ask, office: Path) -> None:
    for part in ("cur", "new", "tmp"):
        (office / "mail/Sent" / part).mkdir(parents=True)
    await ask("mail.forward", mail_id="Inbox/1", to=["bob@acme.example"], body="See below.")
    assert [file.name for file in (office / "mail/Sent/cur").iterdir()] == ["00000001:2,S"]
    forwarded = await ask("mail.read_mail", mail_id="Sent/1")
    assert "Subject: Fwd: The invoice" in forwarded
    assert "Attachment: bill.txt (text/plain)" in forwarded


async def test_what_cannot_be_sent_is_said_and_not_sent(ask: Ask, office: Path) -> None:
    for to, subject, lesson in (
        (["ann"], "x", "'ann' is no address; write 'kim@acme.example'"),
        (["ann@acme.example"], "x\nBcc: all@acme.example", "the subject has several lines"),
        (["a@b.example\nBcc: x@y.example"], "x", "is no address"),
    ):
        assert f"! {lesson}"[2:] in await ask("mail.send_mail", to=to, subject=subject, body="x")
    assert not (office / "mail/Sent.mbox").exists()


async def test_a_thread_holds_its_answers_and_only_own_posts_go(ask: Ask) -> None:
    await ask("chat.reply_to_thread", post_id="general/2", text="And you?")
    assert (await ask("chat.get_thread_replies", post_id="general/1")).splitlines()[1:] == [
        "general/2 (answers general/1) | 2026-02-01 09:05 | kim: Hello Ann",
        "general/4 (answers general/1) | 2026-02-02 09:06 | kim: And you?",
    ]
    assert "general/1 | 2026-02-01 09:00 | ann: Morning all [2 answers]" in await ask(
        "chat.get_channel_history", channel="general"
    )
    assert "! general/1 is a post of ann; only your own" in await ask("chat.delete_post", post_id="general/1")
    await ask("chat.add_reaction", post_id="general/1", reaction="thumbsup")
    assert "! you have reacted" in await ask("chat.add_reaction", post_id="general/1", reaction="thumbsup")


async def test_what_repeats_is_listed_each_time_but_those_left_out(ask: Ask) -> None:
    assert (await ask("calendar.list_events", first="2026-03-01", last="2026-03-17")).splitlines() == [
        "work/event-1 | 2026-03-02 09:00 to 09:30 UTC | Standup",
        "work/event-2 | 2026-03-03, all day | Fair",
        "work/event-1 | 2026-03-16 09:00 to 09:30 UTC | Standup",
    ]


async def test_free_time_is_what_no_event_takes(ask: Ask) -> None:
    await ask("calendar.create_event", title="Lunch", start="2026-03-02T12:00", end="2026-03-02T13:00")
    answer = await ask("calendar.find_free_time", first="2026-03-02T08:00", last="2026-03-02T14:00", minutes=61)
    assert answer.splitlines() == ["2026-03-02 09:30 to 12:00 UTC"]


async def test_a_moved_event_keeps_its_length_and_the_rest(ask: Ask) -> None:
    await ask("calendar.update_event", event_id="work/event-1", start="2026-03-02T14:00+01:00")
    event = await ask("calendar.read_event", event_id="work/event-1")
    assert "when: 2026-03-02 13:00 to 13:30 UTC" in event
    assert "repeats: FREQ=WEEKLY;COUNT=4" in event
    assert "attendees: ann@acme.example" in event
    answer = await ask("calendar.create_event", title="x", start="2026-03-02", end="2026-03-02T10:00")
    assert "! one of start and end is a whole day" in answer


async def test_equal_work_leaves_equal_files(ask: Ask, office: Path) -> None:
    """Nothing knows today's date, so that a trial can be replayed."""

    async def work() -> dict[str, str]:
        await ask("mail.reply", mail_id="Inbox/1", body="Yes", attachments=["a.csv"])
        await ask("chat.post_message", channel="general", text="Done")
        await ask("calendar.create_event", title="Review", start="2026-03-05", end="2026-03-06")
        await ask("pdf.create_pdf", path="b.pdf", markdown="# Same")
        folders = ("mail", "chat", "calendar")
        files = [file for folder in folders for file in (office / folder).rglob("*") if file.is_file()]
        return {str(file): sha256(file.read_bytes()).hexdigest() for file in [*files, office / "b.pdf"]}

    first = await work()
    shutil.rmtree(office)
    furnish(office)
    assert await work() == first
