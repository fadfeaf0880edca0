"""A sandbox pod whose system calls gVisor answers: the world, `sandboxd`, and a tool server beside it."""

from collections.abc import AsyncIterator, Iterator
from io import BytesIO

import pytest
from mcp import Client

from hack.cluster import Cluster
from hack.cluster.images.worlds import GATEWAY, GATEWAY_PORT, OFFICE, gateway_image, office_image
from hack.cluster.node.runtime import GVISOR, has_gvisor
from seatrial_rollout.environment.remote import RemoteSandbox
from tests.sandbox_pods import SandboxPods, runtime_class, sandbox_pods

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not has_gvisor(), reason="needs gVisor, which takes minutes to build (make cluster-gvisor)"),
]

SIDECAR = {"name": "notes", "image": GATEWAY, "port": GATEWAY_PORT}


@pytest.fixture(scope="module")
def pods(node: Cluster) -> Iterator[SandboxPods]:
    images = office_image(), gateway_image()
    with runtime_class(node, "gvisor", GVISOR), sandbox_pods(node, "gvisor", *images) as made:
        for name in ("office", "replacement"):
            plan = {"runtime_class": "gvisor"}
            made.create(name, OFFICE, plan=plan, mcp={"kind": "Sidecars", "sidecars": [SIDECAR]})
        yield made


@pytest.fixture
async def sandbox(pods: SandboxPods) -> AsyncIterator[RemoteSandbox]:
    sandbox = await RemoteSandbox.claim(pods, "office", "trial-1")
    yield sandbox
    await sandbox.stop(delete=False)


async def test_a_trial_s_whole_course_is_the_same_under_gvisor(sandbox: RemoteSandbox, pods: SandboxPods) -> None:
    assert "gvisor" in (await sandbox.exec("cat /proc/version; dmesg")).stdout.lower()
    await sandbox.remember()
    async with Client(sandbox.connect("notes")) as client:
        await client.call_tool("add_note", {"text": "rent is due"})
    assert (await sandbox.exec("cat notes.txt")).stdout == "rent is due\n"

    archive = BytesIO()
    taken = await sandbox.snapshot(archive)
    replacement = await RemoteSandbox.claim(pods, "replacement", "trial-1")
    try:
        await replacement.restore([archive], taken)
        assert (await replacement.exec("cat notes.txt")).stdout == "rent is due\n"
    finally:
        await replacement.stop(delete=False)

    await sandbox.exec("(setsid sleep 600 >/dev/null 2>&1 &); mkdir -p /tests; echo x > /tests/test.sh")
    await sandbox.kill_all()
    assert {finding.kind.value for finding in await sandbox.findings()} == {"LeftRunning", "Tampering"}
    assert (await sandbox.exec("cat /proc/[0-9]*/comm | grep sleep")).stdout == ""
