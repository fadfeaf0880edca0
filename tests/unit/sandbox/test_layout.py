from pathlib import Path

import pytest

from seatrial_api.sandbox_token import Phase
from seatrial_sandbox.errors import SandboxPathError
from seatrial_sandbox.layout import Layout

LAYOUT = Layout(Path("/host/root"))


def test_a_path_is_located_below_the_folder_that_holds_it() -> None:
    assert LAYOUT.locate("/logs/agent/x/y.txt", Phase.AGENT) == (Path("/host/root/agent-logs"), ("x", "y.txt"))


def test_a_relative_path_is_in_the_workdir() -> None:
    assert LAYOUT.locate("a.txt", Phase.AGENT) == (Path("/host/root/workspace"), ("a.txt",))


@pytest.mark.parametrize("path", ["/tests/test.sh", "/logs/verifier/reward.json"])
def test_what_the_verifier_owns_appears_with_its_phase(path: str) -> None:
    LAYOUT.locate(path, Phase.VERIFY)
    with pytest.raises(SandboxPathError):
        LAYOUT.locate(path, Phase.AGENT)


@pytest.mark.parametrize("path", ["/etc/passwd", "/workspace/../etc", "/", "/workspace2"])
def test_no_other_path_is_located(path: str) -> None:
    with pytest.raises(SandboxPathError):
        LAYOUT.locate(path, Phase.VERIFY)


def test_the_verifier_gets_another_home_than_the_agent() -> None:
    agent, verifier = (LAYOUT.locate("/home/agent", phase) for phase in Phase)
    assert agent != verifier


@pytest.mark.parametrize("workdir", ["/", "workspace", "/usr/local", "/tests", "/logs", "/a/../etc", "/home/agent/x"])
def test_a_workdir_must_be_a_folder_of_its_own(workdir: str) -> None:
    with pytest.raises(SandboxPathError, match="workdir"):
        Layout(Path("/host"), workdir)


def test_plain_processes_get_host_folders_for_sandbox_paths() -> None:
    text = LAYOUT.localise("cp /tests/a /logs/verifier/b; ls /logs /testsuite x/tests '/workspace'", Phase.VERIFY)
    assert text == (
        "cp /host/root/tests/a /host/root/verifier-logs/b; ls /logs /testsuite x/tests '/host/root/workspace'"
    )


def test_a_path_that_is_a_shell_variables_default_is_one_too() -> None:
    assert LAYOUT.localise('cd "${WORKSPACE:-/workspace}"', Phase.VERIFY) == 'cd "${WORKSPACE:-/host/root/workspace}"'
