"""Operators that are killed, and operators beside each other, on the real API server and the real KubeRay."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hack.cluster import Cluster
from seatrial_api.pods import RUN_LABEL
from tests.api_proxy import ApiProxy, api_proxy
from tests.cluster_runs import NAMESPACE, attempts, belongings, get, start, wait
from tests.operator_process import SHORT_LEASE, OperatorProcess, free_lease, operator_config, start_operator
from tests.ray_stand_in import RayStandIn


@dataclass
class Mortal:
    """An operator that is killed at steps and started again at once."""

    launch: Callable[[], OperatorProcess]
    bury: Callable[[], None]
    """Called after each death."""
    kills: list[str] = field(default_factory=list)
    _operator: OperatorProcess | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Begin to live."""
        with self._lock:
            self._operator = self.launch()

    def kill(self, step: str) -> None:
        """Signal 9, and the next life."""
        with self._lock:
            if self._operator is not None:
                self._operator.kill()
                self.kills.append(step)
                self.bury()
                self._operator = self.launch()

    def end(self) -> None:
        """No next life."""
        with self._lock:
            if self._operator is not None:
                self._operator.kill()
                self.bury()
                self._operator = None


@pytest.fixture(autouse=True)
def freed_lease(kuberay: Cluster) -> Iterator[None]:
    """The next test's operator need not wait until a dead one's Lease runs out."""
    yield
    free_lease(kuberay)


@pytest.fixture
def proxy(kuberay: Cluster, tmp_path: Path) -> Iterator[ApiProxy]:
    with api_proxy(kuberay.kubeconfig, tmp_path) as made:
        yield made


@pytest.mark.timeout(600)
def test_an_operator_killed_after_every_write_ends_where_one_that_lives_ends(
    kuberay: Cluster, ray: RayStandIn, proxy: ApiProxy, tmp_path: Path
) -> None:
    """What one write leaves behind is what the operator finds that dies before the next: no state is left out.

    Writes about the run's pool come at any time between those about the run, and are left alone: an operator that dies
    between hearing how a driver ended and writing it down makes one more attempt, which the stored reports answer.
    """
    config = operator_config(ray.url)
    operator = Mortal(lambda: start_operator(tmp_path, proxy.kubeconfig, config), lambda: free_lease(kuberay))

    def die(step: str) -> bool:
        if "/rolloutpools/" in step:
            return False
        operator.kill(step)
        return True

    proxy.after = die
    operator.start()
    try:
        name = start(kuberay, ray)
        wait(kuberay, name, ".status.phase", "Succeeded", 290)
        proxy.after = lambda _: False
        kuberay.kubectl("wait", "--for=delete", "rayjobs", f"--selector={RUN_LABEL}={name}", f"--namespace={NAMESPACE}")
    finally:
        operator.end()
    about_objects = [_verb_and_kind(step) for step in operator.kills if not step.endswith("/status")]
    made, taken_away = ["POST rayjobs", "POST secrets"], ["DELETE secrets", "DELETE rayjobs"]
    assert about_objects[:10] == [*made, *taken_away, *made, *taken_away, *made]
    # How many there are depends on what one look at the driver finds; each segment begins and ends in the status.
    assert len(operator.kills) - len(about_objects) >= 6
    assert attempts(ray, name) == ["s0-a0", "s1-a0", "s2-a0"]
    assert belongings(kuberay, name) == [f"rolloutpool.seatrial.dev/{name}"]
    assert [row["result"] for row in get(kuberay, f"rl/{name}")["status"]["stages"]] == ["Passed"] * 5
    assert ray.clashes == []


def _verb_and_kind(step: str) -> str:
    verb, path = step.split()
    return f"{verb} {path.split('/namespaces/')[1].split('/')[1]}"


def test_two_operators_never_both_act(kuberay: Cluster, ray: RayStandIn, tmp_path: Path) -> None:
    patient = {"durationSeconds": 30, "renewSeconds": 25}  # a busy machine must not unseat the first
    config = operator_config(ray.url, lease=SHORT_LEASE | patient)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with api_proxy(kuberay.kubeconfig, folders[0]) as first, api_proxy(kuberay.kubeconfig, folders[1]) as second:
        one = start_operator(folders[0], first.kubeconfig, config)
        try:
            name = start(kuberay, ray, held=True)
            wait(kuberay, name, ".status.stage", "preflight")
            two = start_operator(folders[1], second.kubeconfig, config)
            try:
                ray.held.discard(name)
                wait(kuberay, name, ".status.phase", "Succeeded")
                assert second.writes == []
                one.kill()
                before = len(first.writes)
                other = start(kuberay, ray)
                wait(kuberay, other, ".status.phase", "Succeeded")
                assert len(first.writes) == before
                assert second.writes
            finally:
                two.kill()
        finally:
            one.kill()
    assert ray.clashes == []


def test_an_operator_that_cannot_renew_its_lease_ends(kuberay: Cluster, ray: RayStandIn, tmp_path: Path) -> None:
    with api_proxy(kuberay.kubeconfig, tmp_path) as proxy:
        operator = start_operator(tmp_path, proxy.kubeconfig, operator_config(ray.url, lease=SHORT_LEASE))
        try:
            name = start(kuberay, ray, held=True)
            wait(kuberay, name, ".status.stage", "preflight")
        finally:
            proxy.is_cut = True
            status = operator.process.wait(120)
    assert status == 1
    assert operator.records()[-1]["event"] == "the operator ends"


def test_an_operator_that_is_told_to_end_lets_its_lease_go(kuberay: Cluster, ray: RayStandIn, tmp_path: Path) -> None:
    operator = start_operator(tmp_path, kuberay.kubeconfig, operator_config(ray.url))
    try:
        name = start(kuberay, ray, held=True)
        wait(kuberay, name, ".status.stage", "preflight")
    finally:
        status = operator.stop()
    assert status == 0
    assert get(kuberay, "lease/seatrial-operator", namespace="default")["spec"]["holderIdentity"] == ""
