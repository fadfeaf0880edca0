"""A task as a Harbor task directory: the firm's files, the instruction, the verifier and a solution."""

import gzip
import json
import shutil
import tarfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from firm.task import Task

SERVERS = ("filesystem", "sheets", "workbooks", "docs", "slides", "pdf", "mail", "chat", "calendar", "code")
_HERE = Path(__file__).parent
_TASK_TOML = """\
schema_version = "1.4"

[metadata]
domain = "{domain}"
kind = "{kind}"

[agent]
timeout_sec = 900.0

[verifier]
timeout_sec = 120.0

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
_VERIFY = """\
#!/bin/bash
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/verify.py" "${WORKSPACE:-/workspace}" "$here/expected.json" "${LOGS:-/logs/verifier}/reward.json"
"""
_SOLVE = """\
#!/bin/bash
here=$(cd "$(dirname "$0")" && pwd)
exec tar -xzf "$here/outcome.tar.gz" --no-same-owner -C "${WORKSPACE:-/workspace}"
"""


def write_task(task: Task, world: dict[str, bytes], outcome: dict[str, bytes], folder: Path) -> None:
    """Write a task into a new folder.

    Args:
        task: What is asked for.
        world: The files that the agent finds.
        outcome: The files that are different once the work is done.
        folder: Must not be there yet.
    """
    _write_files(folder / "environment" / "files", world)
    (folder / "solution").mkdir()
    (folder / "solution" / "outcome.tar.gz").write_bytes(_packed(outcome))
    servers = "".join(_SERVER_TOML.format(server=server) for server in SERVERS)
    kind = task.name.removeprefix(f"{task.domain}-").rpartition("-")[0]
    (folder / "instruction.md").write_text(task.instruction + "\n")
    (folder / "task.toml").write_text(_TASK_TOML.format(domain=task.domain, kind=kind) + servers)
    (folder / "tests").mkdir()
    shutil.copy(_HERE / "verify.py", folder / "tests" / "verify.py")
    facts = json.dumps(expected(task, world), indent=1, ensure_ascii=False)
    (folder / "tests" / "expected.json").write_text(facts + "\n")
    _write_script(folder / "tests" / "test.sh", _VERIFY)
    _write_script(folder / "solution" / "solve.sh", _SOLVE)


def expected(task: Task, world: dict[str, bytes]) -> dict[str, object]:
    """What the verifier compares with."""
    untouched = {path: sha256(data).hexdigest() for path, data in world.items() if path not in task.touches}
    return {"facts": task.facts, "untouched": untouched}


def _write_files(folder: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def _packed(files: dict[str, bytes]) -> bytes:
    """Files as one archive, the same bytes each time."""
    data = BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    return data.getvalue()


def _write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
