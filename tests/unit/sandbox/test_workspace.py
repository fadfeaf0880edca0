import os
from pathlib import Path

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from seatrial_sandbox.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "root"
    (root / "data").mkdir(parents=True)
    (root / "data" / "orders.csv").write_text("id\n")
    (tmp_path / "secret.txt").write_text("secret")
    return Workspace(root)


@pytest.mark.parametrize(
    "path", ["data/orders.csv", "./data/orders.csv", "data/../data/orders.csv", "/workspace/data/orders.csv"]
)
def test_a_path_inside_is_found_however_it_is_written(workspace: Workspace, path: str) -> None:
    assert workspace.file(path) == workspace.root / "data/orders.csv"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "data/../../secret.txt",
        "/etc/passwd",
        "/workspace/../etc/passwd",
        "/workspaces/x",
        "..",
        "a\0b",
        "",
    ],
)
def test_a_path_outside_is_refused(workspace: Workspace, path: str) -> None:
    with pytest.raises(ToolError):
        workspace.resolve(path)


@pytest.mark.parametrize("target", ["../secret.txt", "/etc/passwd", "data/orders.csv"])
def test_a_symbolic_link_is_refused_wherever_it_leads(workspace: Workspace, target: str) -> None:
    (workspace.root / "link").symlink_to(target)
    with pytest.raises(ToolError, match="symbolic link"):
        workspace.file("link")


def test_a_path_through_a_linked_folder_is_refused(workspace: Workspace) -> None:
    (workspace.root / "link").symlink_to(workspace.root.parent)
    with pytest.raises(ToolError, match="symbolic link"):
        workspace.resolve("link/secret.txt")


def test_a_fifo_is_not_a_file(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "pipe")
    with pytest.raises(ToolError, match="not a regular file"):
        workspace.file("pipe")


def test_a_misspelt_name_is_answered_with_the_one_that_exists(workspace: Workspace) -> None:
    with pytest.raises(ToolError, match=r"did you mean 'data/orders\.csv'"):
        workspace.file("data/order.csv")


def test_a_name_like_no_other_is_answered_with_what_there_is(workspace: Workspace) -> None:
    with pytest.raises(ToolError, match="holds: data"):
        workspace.file("zzz")


def test_code_names_the_folder_where_no_sandbox_can_give_it_its_name(workspace: Workspace) -> None:
    code = "cat /workspace/a '/workspace' /workspace2 x/workspace"
    assert workspace.localise(code) == f"cat {workspace.root}/a '{workspace.root}' /workspace2 x/workspace"
