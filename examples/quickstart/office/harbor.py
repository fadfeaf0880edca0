"""A task as a Harbor task directory."""

import shlex
from pathlib import Path

from office.task import Cell, Reply, Row, Task

_GRADERS = Path(__file__).parent / "graders"
_SERVERS = ("filesystem", "sheets", "code")
_TASK_TOML = """\
schema_version = "1.4"

[metadata]
domain = "{domain}"
kind = "{kind}"

[agent]
timeout_sec = 120.0

[verifier]
timeout_sec = 30.0

[environment]
workdir = "/workspace"
"""
_SERVER_TOML = """
[[environment.mcp_servers]]
name = "{server}"
transport = "stdio"
command = "seatrial-mcp"
args = ["{server}"]
"""
_SOLVE = '#!/bin/bash\nset -e\ncd "${WORKSPACE:-/workspace}"\n'


def write_task(task: Task, folder: Path) -> None:
    """Write instruction, world, verifier and solution into a new folder."""
    task.office.write(folder / "environment" / "files")
    (folder / "environment" / "files" / "outbox").mkdir()
    (folder / "tests").mkdir()
    (folder / "solution").mkdir()
    servers = "".join(_SERVER_TOML.format(server=server) for server in _SERVERS)
    (folder / "instruction.md").write_text(task.instruction)
    (folder / "task.toml").write_text(_TASK_TOML.format(domain=task.domain, kind=task.kind) + servers)
    _write_script(folder / "tests" / "test.sh", _verifier(task))
    _write_script(folder / "solution" / "solve.sh", _SOLVE + _solution(task))


def _write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _verifier(task: Task) -> str:
    match task.expected:
        case Reply(path, value):
            return _fill("reply.sh", path=path, value=value, given="|".join(["", *task.office.notes, ""]))
        case Cell(path, row, column, value):
            sheet = task.office.sheets[path].csv()
            return _fill("cell.sh", sheet, path=path, row=row, column=column, value=value)
        case Row(path, values):
            return _fill("row.sh", task.office.sheets[path].csv(), path=path, row=",".join(values))


def _fill(grader: str, sheet: str = "", **fields: str) -> str:
    text = (_GRADERS / grader).read_text().replace("@SHEET@", sheet.rstrip("\n"))
    for name, value in fields.items():
        text = text.replace(f"@{name.upper()}@", shlex.quote(value))
    return text


def _solution(task: Task) -> str:
    match task.expected:
        case Reply(path, value):
            return f"mkdir -p outbox\necho {shlex.quote(value)} >{path}\n"
        case Cell(path, row, column, value):
            sheet = task.office.sheets[path]
            before = sheet.rows[sheet.keys.index(row)]
            after = [value if header == column else cell for header, cell in zip(sheet.header, before, strict=True)]
            replacement = f"{','.join(before)}/{','.join(after)}"
            return f'sheet=$(<{path})\necho "${{sheet/{replacement}}}" >{path}\n'
        case Row(path, values):
            return f"echo {','.join(values)} >>{path}\n"
