"""The office's tool servers in real sandboxes, where children of the keeper are born inside."""

import asyncio
from pathlib import Path

import pytest
from mcp import Client

from seatrial_rollout.environment.sandbox import LocalSandbox
from seatrial_sandbox.server_spec import McpServerSpec
from tests.integration.sandbox.conftest import CallTool, StartSandbox
from tests.office_workspace import CALLS, furnish

_SERVERS = [McpServerSpec(name, "seatrial-mcp", [name]) for name in CALLS]


@pytest.fixture
async def office(start_sandbox: StartSandbox, tmp_path: Path) -> LocalSandbox:
    sandbox = await start_sandbox(servers=_SERVERS)
    furnish(tmp_path / "world")
    await sandbox.upload(tmp_path / "world", "/workspace")
    return sandbox


@pytest.mark.parametrize("server", sorted(CALLS))
async def test_every_tool_works_in_a_sandbox(office: LocalSandbox, server: str, tmp_path: Path) -> None:
    async with Client(office.connect(server)) as client:
        for tool, arguments in CALLS[server].items():
            await office.upload(tmp_path / "world", "/workspace")
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, (tool, result.content)


async def test_an_agent_that_kills_all_it_sees_leaves_the_tools_alive(office: LocalSandbox, call: CallTool) -> None:
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(call(office, "docs", "read_doc", path="a.docx"))
            group.create_task(call(office, "code", "code_exec", code="kill -9 -1"))
    is_error, text = await call(office, "docs", "read_doc", path="a.docx")
    assert not is_error
    assert "Contract" in text


async def test_a_file_that_takes_all_memory_costs_one_call(office: LocalSandbox, call: CallTool) -> None:
    code = (
        "import zipfile; z = zipfile.ZipFile('a.docx'); parts = {n: z.read(n) for n in z.namelist()};"
        "name = 'word/document.xml'; body = parts[name];"
        "parts[name] = body.replace(b'<w:body>', b'<w:body>' + b'<w:p><w:r><w:t>x</w:t></w:r></w:p>' * 3_000_000);"
        "w = zipfile.ZipFile('a.docx', 'w', zipfile.ZIP_DEFLATED);"
        "[w.writestr(n, d) for n, d in parts.items()]; w.close()"
    )
    is_error, text = await call(office, "code", "code_exec", code=f'python3 -c "{code}"')
    assert not is_error, text
    is_error, text = await call(office, "docs", "read_doc", path="a.docx")
    assert is_error
    assert any(lesson in text for lesson in ("memory", "gave up", "broke the reader", "damaged"))
    assert (await call(office, "sheets", "list_tabs", path="a.csv")) == (False, "a: 3 rows, 2 columns")
