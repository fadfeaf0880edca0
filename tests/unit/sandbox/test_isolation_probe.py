"""What is said where sandboxes cannot be kept apart."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody whom the kernel refuses these")

_NOBODY = "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)"
_NO_MORE_USER_NAMESPACES = (
    "os.unshare(os.CLONE_NEWUSER); open('/proc/sys/user/max_user_namespaces', 'w').write('0')"  # in this one alone
)


def refused(means: str, prepare: str) -> str:
    """What is said in a process that was prepared for it."""
    code = (
        "import os\n"
        "from seatrial_rollout.environment.isolation import Means\n"
        "from seatrial_rollout.environment.probe import refused_namespaces\n"
        f"{prepare}\n"
        f"print(refused_namespaces(Means.{means}))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_each_namespace_that_the_kernel_refuses_is_named_with_its_error() -> None:
    kinds = ("mount", "PID", "network", "IPC", "UTS")
    refusals = [f"the kernel refuses {kind} namespaces: EPERM, Operation not permitted" for kind in kinds]
    assert refused("ROOT", _NOBODY) == "; ".join(refusals)


def test_a_refusal_of_user_namespaces_is_told_with_where_to_look() -> None:
    told = refused("USER_NAMESPACE", _NO_MORE_USER_NAMESPACES)
    assert told.startswith("the kernel refuses user namespaces: ENOSPC, ")
    assert "user.max_user_namespaces" in told
