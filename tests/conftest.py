"""What every test gets: clusters by grade; and how files run side by side.

Property tests have no deadline, since the machine may be busy.
"""

import os
import sys
from typing import override

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.clusters import control_plane, controllers, node

__all__ = ["control_plane", "controllers", "node"]

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_TOGETHER = {
    "whole runs": (
        "tests/e2e/test_cluster_run.py",
        "tests/e2e/test_kubernetes_run.py",
        "tests/e2e/test_local_run.py",
        "tests/e2e/test_pool_on_node.py",
    ),
    "engines": ("tests/integration/engine/",),
    "policies": ("tests/integration/policy/",),
    "a node": (
        "tests/e2e/",
        "tests/integration/cluster/test_node.py",
        "tests/integration/operator/test_pull_pods.py",
        "tests/integration/sandboxes/test_recycling.py",
    ),
    "a control plane": (
        "tests/integration/chart/",
        "tests/integration/cluster/",
        "tests/integration/operator/",
        "tests/integration/sandboxes/",
    ),
}
"""What one process does: what fills the machine, and what shares a cluster. The first that fits counts."""


class FilesSideBySide(LoadScopeScheduling):
    """Gives each process a file at a time, whose tests share what they start, or all files of a kind."""

    @override
    def _split_scope(self, nodeid: str) -> str:
        return _kind(nodeid) or nodeid.partition("::")[0]


def _kind(nodeid: str) -> str | None:
    return next((kind for kind, files in _TOGETHER.items() if nodeid.startswith(files)), None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesSideBySide:
    return FilesSideBySide(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what the files of a kind shared with the last of them: an idle node takes a tenth of a core."""
    kind = _kind(item.nodeid)
    if kind is not None and nextitem is not None and _kind(nextitem.nodeid) != kind:
        item.session._setupstate.teardown_exact(None)  # fixtures have no scope of several files


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell a failure at once, since a run that is cut off never comes to its summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        sys.stderr.write(f"\n{report.nodeid}\n{report.longreprtext}\n")
