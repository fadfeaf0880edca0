"""`seatrial-mcp NAME`: one MCP server over stdio, for any MCP client."""

import argparse
import logging
from pathlib import Path


def main() -> None:
    """Serve until standard input ends."""
    from seatrial_sandbox.servers import BUILDERS  # noqa: PLC0415  half a second, which --help can do without
    from seatrial_sandbox.workspace import Workspace  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="seatrial-mcp", description="Serve MCP tools over stdio.")
    parser.add_argument("server", choices=sorted(BUILDERS), help="which tools to serve")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the workspace (default: the current folder)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
    root = arguments.root.resolve()
    BUILDERS[arguments.server](Workspace(root, name=str(root))).run("stdio")


if __name__ == "__main__":
    main()
