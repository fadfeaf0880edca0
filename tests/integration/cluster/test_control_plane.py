import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import Cluster, Grade
from hack.cluster.copies import Copy
from hack.cluster.errors import CommandError
from hack.cluster.layout import ROOT
from tests.clusters import cluster_of
from tests.leftovers import descendants, eventually, is_running, processes_using
from tests.manifests import run_manifest

QUICKSTART = ROOT / "examples/quickstart/run.yaml"


@pytest.fixture(scope="module")
def with_crds(control_plane: Cluster) -> Cluster:
    control_plane.apply_crds(ROOT / "crds")
    return control_plane


def create(cluster: Cluster, manifest: dict[str, Any]) -> str:
    return cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(manifest))


def test_our_kinds_are_served_by_the_real_api_server(with_crds: Cluster) -> None:
    kinds = with_crds.kubectl("api-resources", "--api-group=seatrial.dev", "--output=name").split()
    assert kinds == ["rlruns.seatrial.dev", "rolloutpools.seatrial.dev", "worldimages.seatrial.dev"]


def test_the_quickstart_is_accepted(with_crds: Cluster) -> None:
    created = with_crds.kubectl("create", "--dry-run=server", "-f", str(QUICKSTART))
    assert created.startswith("rlrun.seatrial.dev/quickstart created")


def test_a_contradiction_is_refused_in_our_own_words(with_crds: Cluster) -> None:
    manifest = run_manifest(spec__topology__nodes=5, spec__topology__inferenceTrainRatio="4:2")
    with pytest.raises(CommandError, match="4:2 does not divide 5 nodes; make nodes a multiple of 6"):
        create(with_crds, manifest)


def test_two_copies_run_beside_each_other(control_plane: Cluster) -> None:
    for other in cluster_of(Grade.CONTROL_PLANE):
        other.kubectl("create", "namespace", "only-here")
        assert "only-here" in other.kubectl("get", "namespaces")
        assert "only-here" not in control_plane.kubectl("get", "namespaces")


def test_nothing_is_left_of_a_copy_that_was_stopped() -> None:
    for copy in cluster_of(Grade.CONTROL_PLANE):
        keeper = keeper_of(copy)
        processes = {keeper, *descendants(keeper)}
        copy.stop()
        assert not copy.layout.folder.exists()
        assert not any(map(is_running, processes))


async def test_a_copy_ends_with_its_owner_even_if_the_owner_is_killed() -> None:
    script = """
import signal
from hack.cluster import Cluster, Grade
print(Cluster.start(Grade.CONTROL_PLANE).layout.folder, flush=True)
signal.pause()
"""
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cwd=ROOT, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    folder = Path((await owner.stdout.readline()).decode().strip())
    owner.kill()
    await owner.wait()
    await eventually(lambda: not folder.exists() and not processes_using(folder), what="the copy to end")


async def test_a_copy_ends_with_its_keeper_and_stop_removes_the_rest() -> None:
    for copy in cluster_of(Grade.CONTROL_PLANE):
        keeper = keeper_of(copy)
        processes = descendants(keeper)
        os.kill(keeper, signal.SIGKILL)
        await eventually(lambda: not any(map(is_running, processes)), what="the processes to end")  # noqa: B023  awaited in the loop
        copy.stop()
        assert not copy.layout.folder.exists()


def keeper_of(cluster: Cluster) -> int:
    copy = Copy.read(cluster.layout)
    assert copy is not None
    return copy.keeper
