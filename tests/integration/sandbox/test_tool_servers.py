import asyncio
import sys
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from seatrial_rollout.environment.sandbox import LocalSandbox
from tests.integration.sandbox.conftest import CallTool, outcome

ORDERS = 'order,customer,total\nA-1,Nord AG,42.0\nA-2,Süd GmbH,"1,234.50"\nA-3,Nord AG,0.10\n'


@pytest.fixture
async def office(sandbox: LocalSandbox, tmp_path: Path) -> LocalSandbox:
    world = tmp_path / "world"
    (world / "notes").mkdir(parents=True)
    (world / "orders.csv").write_text(ORDERS)
    (world / "notes/todo.txt").write_text("call Nord\npay Süd\n")
    (world / "logo.png").write_bytes(b"\x89PNG\xff")
    await sandbox.upload(world, "/workspace")
    return sandbox


async def test_every_tool_answers_a_valid_call(office: LocalSandbox, call: CallTool) -> None:
    assert await call(office, "filesystem", "list_files") == (False, "logo.png\nnotes/\norders.csv")
    assert await call(office, "filesystem", "tree") == (False, "logo.png\nnotes/\n  todo.txt\norders.csv")
    assert await call(office, "filesystem", "read_text_file", path="notes/todo.txt", lines="2") == (False, "pay Süd\n")
    assert await call(office, "filesystem", "search_files", query="nord", pattern="*.txt") == (
        False,
        "notes/todo.txt:1: call Nord",
    )
    assert (await call(office, "filesystem", "file_info", path="orders.csv"))[1].splitlines()[:2] == [
        "path: orders.csv",
        "type: file",
    ]
    assert await call(office, "filesystem", "write_text_file", path="out/a.txt", text="ä") == (
        False,
        "wrote 2 bytes to out/a.txt",
    )
    assert await call(office, "sheets", "list_tabs", path="orders.csv") == (False, "orders: 4 rows, 3 columns")
    assert await call(office, "sheets", "lookup", path="orders.csv", row="A-2", column="customer") == (
        False,
        "Süd GmbH",
    )
    assert await call(office, "sheets", "aggregate", path="orders.csv", column="total", function="sum") == (
        False,
        "1276.6",
    )
    assert await call(office, "sheets", "edit_cell", path="orders.csv", row="A-1", column="total", value=7) == (
        False,
        "A-1 / total: 42.0 -> 7",
    )
    assert await call(office, "sheets", "append_row", path="orders.csv", values=["A-4", "Ost", 3]) == (
        False,
        "added row 5",
    )
    assert await call(office, "sheets", "read_tab", path="orders.csv", range="A4:C5") == (
        False,
        "A-3,Nord AG,0.10\nA-4,Ost,3",
    )
    assert await call(office, "code", "code_exec", code="cat out/a.txt; wc -l < orders.csv") == (False, "ä5")


async def test_excel_files_answer_like_csv_files(sandbox: LocalSandbox, call: CallTool, tmp_path: Path) -> None:
    from openpyxl import Workbook  # noqa: PLC0415

    book = Workbook()
    sheet = book.create_sheet("Stock")
    for row in (["item", "count", "price"], ["bolt", 42.0, 0.1], ["nut", 7, 0.2]):
        sheet.append(row)
    book.save(tmp_path / "stock.xlsx")
    await sandbox.upload(tmp_path / "stock.xlsx", "stock.xlsx")
    where = {"path": "stock.xlsx", "tab": "Stock"}
    assert await call(sandbox, "sheets", "lookup", row="bolt", column="count", **where) == (False, "42")
    assert await call(sandbox, "sheets", "aggregate", column="price", function="sum", **where) == (False, "0.3")
    await call(sandbox, "sheets", "edit_cell", row="nut", column="count", value="8", **where)
    await call(sandbox, "sheets", "append_row", values=["pin", "1", "2"], **where)
    assert await call(sandbox, "sheets", "aggregate", column="count", function="max", **where) == (False, "42")
    assert await call(sandbox, "sheets", "read_tab", range="A3:C4", **where) == (False, "nut,8,0.2\npin,1,2")


@pytest.mark.parametrize(
    ("server", "tool", "arguments", "lesson"),
    [
        ("filesystem", "read_text_file", {}, "path: Field required; read_text_file takes: path (string), lines"),
        ("filesystem", "read_text_file", {"file": "a"}, "takes no argument 'file'; read_text_file takes: path"),
        ("filesystem", "read_text_file", {"path": "orders.cvs"}, "did you mean 'orders.csv'?"),
        ("filesystem", "read_text_file", {"path": "notes"}, "is a folder"),
        ("filesystem", "read_text_file", {"path": "logo.png"}, "not a text file"),
        ("filesystem", "read_text_file", {"path": "notes/todo.txt", "lines": "x"}, "such as '7' or '1-50'"),
        ("filesystem", "read_text_file", {"path": "notes/todo.txt", "lines": "9"}, "has 2 lines"),
        ("filesystem", "write_text_file", {"path": "notes", "text": ""}, "is a folder"),
        ("filesystem", "read_file", {"path": "a"}, "the tools are: list_files"),
        ("sheets", "lookup", {"path": "orders.csv", "row": "A1", "column": "total"}, "did you mean 'A-1'"),
        ("sheets", "lookup", {"path": "orders.csv", "row": "A-1", "column": "sum"}, "order, customer, total"),
        (
            "sheets",
            "lookup",
            {"path": "orders.csv", "row": "A-1", "column": "total", "tab": "x"},
            "the tabs are: orders",
        ),
        ("sheets", "aggregate", {"path": "orders.csv", "column": "customer", "function": "sum"}, "not a number"),
        ("sheets", "aggregate", {"path": "orders.csv", "column": "total", "function": "median"}, "'mean'"),
        ("sheets", "append_row", {"path": "orders.csv", "values": ["x"]}, "give: order, customer, total"),
        ("sheets", "read_tab", {"path": "notes/todo.txt"}, ".csv and .xlsx"),
        ("sheets", "read_tab", {"path": "orders.csv", "range": "Z99"}, "4 rows and 3 columns"),
        ("code", "code_exec", {"code": "echo before; exit 3"}, "before\n[exit code 3]"),
        ("code", "code_exec", {"code": "no_such_command"}, "command not found"),
        ("code", "code_exec", {"code": "\0"}, "cannot be run"),
    ],
)
async def test_a_wrong_call_fails_and_says_what_to_change(
    office: LocalSandbox, call: CallTool, server: str, tool: str, arguments: dict[str, object], lesson: str
) -> None:
    is_error, text = await call(office, server, tool, **arguments)
    assert is_error
    assert lesson in text
    assert "Traceback" not in text
    assert str(office._layout.root) not in text


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "link/passwd", "passwd"])
async def test_no_tool_reads_or_writes_outside_the_workspace(sandbox: LocalSandbox, call: CallTool, path: str) -> None:
    await sandbox.exec("ln -s /etc link; ln -s /etc/passwd passwd")
    for tool, more in (("read_text_file", {}), ("write_text_file", {"text": "x"})):
        is_error, text = await call(sandbox, "filesystem", tool, path=path, **more)
        assert is_error
        assert "outside the workspace" in text or "symbolic link" in text


async def test_huge_output_keeps_its_head_and_tail(sandbox: LocalSandbox, call: CallTool) -> None:
    is_error, text = await call(sandbox, "code", "code_exec", code="echo first; yes | head -c 5000000; echo last")
    assert not is_error
    assert text.startswith("first\ny\n")
    assert text.endswith("y\nlast")
    assert len(text) < 101_000
    assert "bytes left out; write long output to a file" in text


async def test_a_huge_file_is_read_in_parts(sandbox: LocalSandbox, call: CallTool) -> None:
    await sandbox.exec("yes line | head -c 20000000 > big.txt")
    is_error, text = await call(sandbox, "filesystem", "read_text_file", path="big.txt")
    assert is_error
    assert "ask for lines" in text
    assert await call(sandbox, "filesystem", "read_text_file", path="big.txt", lines="3999999") == (False, "line\n")


async def test_calls_of_one_session_run_at_the_same_time(sandbox: LocalSandbox) -> None:
    """Each waits for the other's file, so neither could end alone."""
    script = "touch {0}; until [ -e {1} ]; do :; done; echo {0}"
    async with asyncio.timeout(120), Client(sandbox.connect("code")) as client, asyncio.TaskGroup() as group:
        one = group.create_task(client.call_tool("code_exec", {"code": script.format("a", "b")}))
        two = group.create_task(client.call_tool("code_exec", {"code": script.format("b", "a")}))
    assert [outcome(one.result()), outcome(two.result())] == [(False, "a"), (False, "b")]


async def test_many_sessions_write_and_read_side_by_side(sandbox: LocalSandbox, call: CallTool) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(16):
            group.create_task(call(sandbox, "filesystem", "write_text_file", path=f"{number}.txt", text=str(number)))
    async with asyncio.TaskGroup() as group:
        reads = [
            group.create_task(call(sandbox, "filesystem", "read_text_file", path=f"{number}.txt"))
            for number in range(16)
        ]
    assert [read.result() for read in reads] == [(False, str(number)) for number in range(16)]


async def test_a_schema_describes_every_argument_and_nothing_else(sandbox: LocalSandbox) -> None:
    for server in ("filesystem", "sheets", "code"):
        async with Client(sandbox.connect(server)) as client:
            for tool in (await client.list_tools()).tools:
                assert tool.description
                for argument in tool.input_schema["properties"].values():
                    assert argument["description"]
                    assert argument["type"] in {"string", "array"}
                    assert "title" not in argument


async def test_any_mcp_client_can_run_a_server_over_stdio(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    command = str(Path(sys.executable).parent / "seatrial-mcp")
    parameters = StdioServerParameters(command=command, args=["filesystem", "--root", str(tmp_path)])
    async with Client(stdio_client(parameters)) as client:
        assert outcome(await client.call_tool("read_text_file", {"path": "a.txt"})) == (False, "hello")
        assert (await client.call_tool("read_text_file", {"path": "../a.txt"})).is_error
