"""Archipelago's open environment server in the shape of a delivered world; nothing of it is in this repository.

`python -m hack.cluster.images.archipelago CHECKOUT ARCHIVE` makes the image of a checkout whose `environment` and
`mcp_servers/code` have their `.venv`: see docs/cluster/archipelago.md.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from hack.cluster.images.archive import Image, Layer, write_archive
from hack.cluster.images.system import libraries, system
from hack.cluster.images.worlds import delivered_parts

ARCHIPELAGO = "localhost/archipelago:test"
_LEFT_OUT = ("nvidia", "xgboost", "scipy", "scipy.libs", "sklearn", "statsmodels", "plotly", "test", "__pycache__")
"""Gigabytes that commands of agents may want and the servers do not."""
_CODE = "/app/mcp_servers/code"
_APPS = {
    "mcpServers": {
        "code_execution_server": {
            "transport": "stdio",
            "command": f"{_CODE}/.venv/bin/python",
            "args": ["main.py"],
            "cwd": f"{_CODE}/mcp_servers/code_execution_server",
            "env": {"SANDBOX_ROOT": "/filesystem", "MCP_TRANSPORT": "stdio"},
        }
    }
}
_SERVE = "#!/bin/sh\nexec .venv/bin/python -m uvicorn runner.main:app --host 0.0.0.0 --port 8000\n"


def write_world(checkout: Path, archive: Path) -> None:
    """Write the archive of an image whose `start.sh` starts the environment server with its code tools."""
    environment, code = checkout / "environment", checkout / "mcp_servers" / "code"
    program = (environment / ".venv/bin/python").resolve()
    home = program.parents[1]

    def fill(layer: Layer) -> None:
        system(layer)
        layer.text("app/serve.sh", _SERVE, 0o755)
        layer.text("app/apps.json", json.dumps(_APPS))
        delivered_parts(layer)
        layer.link("usr/local/bin/python3", "/app/.venv/bin/python")
        for source, place in ((home, str(home)), (environment, "/app"), (code, _CODE)):
            layer.tree(source, place, leave_out=[*_LEFT_OUT, *(("site-packages",) if source == home else ())])
            libraries(layer, (file for file in source.rglob("*.so*") if not set(file.parts) & set(_LEFT_OUT)))
        libraries(layer, [program])
        with tempfile.TemporaryDirectory() as scratch:
            shim = Path(scratch, "sandbox_fs.so")
            source = code / "mcp_servers/code_execution_server/sandbox_fs.c"
            subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", shim, source, "-ldl", "-lpthread"], check=True)
            layer.file(shim, "app/lib/sandbox_fs.so")

    env = {"PYTHONDONTWRITEBYTECODE": "1"}
    write_archive(archive, Image(ARCHIPELAGO, command=("sleep", "infinity"), env=env, folder="/app"), fill)


if __name__ == "__main__":
    write_world(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
