"""The operator's manifests as the real API server sees them, with KubeRay's own schemas."""

import json
from typing import Any

import pytest
import yaml

from hack.cluster import Cluster
from hack.cluster.errors import CommandError
from hack.cluster.layout import ROOT, SHARE
from seatrial_api.pods import Role
from seatrial_api.rlrun import RLRun
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.checks import template_path
from seatrial_operator.manifests.rehearsal import blame_pod_template, blame_ray_job, rehearsal, worker_roles
from tests.golden_manifests import UID, cases, made, objects

CASES = list(cases())
NO_AUTH_OPTIONS = ".spec.rayClusterSpec.authOptions: field not declared in schema"


@pytest.fixture(scope="module")
def server(control_plane: Cluster) -> Cluster:
    control_plane.apply_crds(ROOT / "crds")
    control_plane.apply_crds(SHARE / "kuberay")
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
    return control_plane


def dry_run(server: Cluster, *manifests: dict[str, Any]) -> str:
    """Apply as the operator does, without effect and without what kubectl by itself would say."""
    listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    words = (
        "--server-side",
        "--dry-run=server",
        "--validate=ignore",
        "--field-manager=seatrial-operator",
        "-o",
        "name",
    )
    return server.kubectl("apply", *words, "-f", "-", stdin=json.dumps(listed))


@pytest.mark.parametrize(("name", "run", "segments", "config"), CASES, ids=[name for name, *_ in CASES])
def test_every_golden_object_is_accepted(
    server: Cluster, name: str, run: RLRun, segments: tuple[int, ...], config: OperatorConfig
) -> None:
    manifests = objects(run, segments, config.model_copy(update={"ray_auth": "disabled"}))
    assert len(dry_run(server, *manifests).split()) == len(manifests)


@pytest.mark.parametrize(("name", "run", "segments", "config"), CASES, ids=[name for name, *_ in CASES])
def test_every_golden_pod_is_one_that_kubernetes_would_run(
    server: Cluster, name: str, run: RLRun, segments: tuple[int, ...], config: OperatorConfig
) -> None:
    templates = rehearsal(run, UID, config)
    assert len(dry_run(server, *templates.values()).split()) == len(templates)


def test_the_quickstart_for_a_cluster_can_be_applied(server: Cluster) -> None:
    cluster, volume = (ROOT / "examples" / "quickstart" / name for name in ("cluster.yaml", "volume.yaml"))
    claim, pod = yaml.safe_load_all(volume.read_text())
    template = {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": pod["metadata"],
        "template": {"spec": pod["spec"]},
    }
    assert len(dry_run(server, claim, template).split()) == 2
    assert "rlrun.seatrial.dev/quickstart created" in server.kubectl("apply", "--dry-run=server", "-f", str(cluster))


def test_a_kuberay_without_token_authentication_refuses_it_instead_of_leaving_it_out(server: Cluster) -> None:
    *_, job = objects(*CASES[-1][1:])
    with pytest.raises(CommandError, match=NO_AUTH_OPTIONS):
        dry_run(server, job)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"spec": {"tolerationz": [{"key": "a"}]}}, ".spec.tolerationz: field not declared in schema"),
        ({"spce": {}}, ".spce: field not declared in schema"),
        ({"spec": {"hostNetwork": "yes"}}, ".spec.hostNetwork: expected boolean"),
    ],
)
def test_a_template_of_the_wrong_shape_is_refused_with_the_run_s_own_field(
    server: Cluster, template: dict[str, Any], words: str
) -> None:
    run = made(spec__topology={"nodes": 2, "train": {"podTemplate": template}})
    *_, job = objects(run, (1,), OperatorConfig())
    with pytest.raises(CommandError) as caught:
        dry_run(server, job)
    assert f"spec.topology.train.podTemplate{words}" in blame_ray_job(caught.value.output, worker_roles(run))


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"spec": {"containers": [{"name": "ray", "volumeMounts": [{"mountPath": "/x", "name": "gone"}]}]}}, "spec."),
        ({"spec": {"volumes": [{"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}}]}}, "spec.volumes[0]"),
        ({"spec": {"containers": [{"name": "side"}]}}, "spec.containers[1].image"),
        ({"spec": {"tolerations": [{"key": "a", "operator": "Likes"}]}}, "spec.tolerations[0].operator"),
        ({"spec": {"nodeSelector": {"not a key": "a"}}}, "spec.nodeSelector"),
        ({"metadata": {"labels": {"a": "not a value!"}}}, "metadata.labels"),
        ({"spec": {"priority": "high"}}, "spec.priority"),
        ({"spec": {"containers": [{"name": "ray", "env": [{"name": "", "value": "a"}]}]}}, "spec.containers[0].env[0]"),
    ],
)
def test_a_template_that_no_pod_could_have_is_refused_before_there_is_a_job(
    server: Cluster, template: dict[str, Any], field: str
) -> None:
    run = made(spec__topology={"agents": {"podTemplate": template}})
    with pytest.raises(CommandError) as caught:
        dry_run(server, rehearsal(run, UID, OperatorConfig())[Role.AGENTS])
    assert f"spec.topology.agents.podTemplate.{field}" in blame_pod_template(
        caught.value.output, template_path(Role.AGENTS)
    )
