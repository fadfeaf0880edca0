import difflib
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.layout import ROOT
from seatrial_operator.config import OperatorConfig, SandboxesConfig
from tests.charts import CHART, EVERYTHING, NAMESPACE, RELEASE, HelmError, helm, of_kind, render

GOLDEN = ROOT / "tests" / "data" / "chart"
UPDATE = "UPDATE_GOLDEN"
"""With this in the environment, the golden files are written instead of compared."""


@pytest.fixture(scope="module")
def everything() -> list[dict[str, Any]]:
    return render(EVERYTHING)


@pytest.fixture(scope="module")
def defaults() -> list[dict[str, Any]]:
    return render()


def test_helm_lint_finds_nothing() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), values=EVERYTHING)


@pytest.mark.parametrize("name", ["defaults", "everything"])
def test_what_is_rendered_is_what_was_reviewed(name: str, request: pytest.FixtureRequest) -> None:
    objects = [item for item in request.getfixturevalue(name) if item["kind"] != "CustomResourceDefinition"]
    for item in of_kind(objects, "ConfigMap"):
        item["data"] = {key: text if key.endswith(".yaml") else "…" for key, text in item["data"].items()}
    text = yaml.safe_dump_all(objects, sort_keys=True, width=120, allow_unicode=True)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get(UPDATE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    differences = "\n".join(difflib.unified_diff(path.read_text().splitlines(), text.splitlines(), lineterm="", n=2))
    assert not differences, f"look at the differences, then set {UPDATE}=1 to accept them:\n{differences}"


def test_the_operator_reads_the_config_that_the_chart_writes(everything: list[dict[str, Any]]) -> None:
    (config,) = [item for item in of_kind(everything, "ConfigMap") if "operator.yaml" in item["data"]]
    read = OperatorConfig.model_validate(yaml.safe_load(config["data"]["operator.yaml"]))
    broker = SandboxesConfig(address=f"{RELEASE}-broker.{NAMESPACE}.svc:8092")
    assert read == OperatorConfig(namespaces=["team-a", "team-b"], sandboxes=broker)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"conf": {}}, "conf"),
        ({"config": {"namespace": ["a"]}}, "namespace"),
        ({"config": {"workers": 0}}, "workers"),
        ({"config": {"rayAuth": "password"}}, "rayAuth"),
        ({"replicas": "two"}, "replicas"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"config": {"lease": {"name": "Not A Name"}}}, "name"),
    ],
)
def test_a_value_that_does_not_exist_or_fit_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(HelmError, match=words):
        render(values)


def test_an_image_is_named_by_digest_if_there_is_one() -> None:
    digest = "sha256:" + "a" * 64
    deployments = of_kind(render({"image": {"repository": "r/o", "tag": "1", "digest": digest}}), "Deployment")
    images = {item["spec"]["template"]["spec"]["containers"][0]["image"] for item in deployments}
    assert images == {f"r/o@{digest}"}


def test_a_new_config_restarts_operator_and_broker() -> None:
    def checksums(workers: int) -> set[str]:
        deployments = of_kind(render({"config": {"workers": workers}}), "Deployment")
        assert {item["metadata"]["name"] for item in deployments} == {"seatrial", "seatrial-broker"}
        return {item["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for item in deployments}

    assert checksums(4) == checksums(4)
    assert checksums(4).isdisjoint(checksums(5))


@pytest.mark.parametrize(
    ("kind", "name"), [("Deployment", "seatrial"), ("Deployment", "seatrial-broker"), ("Pod", "seatrial-test")]
)
def test_pods_of_the_chart_meet_the_restricted_standard(kind: str, name: str, everything: list[dict[str, Any]]) -> None:
    (item,) = [one for one in of_kind(everything, kind) if one["metadata"]["name"] == name]
    pod = item["spec"]["template"]["spec"] if kind == "Deployment" else item["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert container["resources"]["limits"]["memory"]


def test_crds_are_those_of_the_models_and_stay_when_the_release_goes(defaults: list[dict[str, Any]]) -> None:
    rendered = {item["spec"]["names"]["plural"]: item for item in of_kind(defaults, "CustomResourceDefinition")}
    committed = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")}
    assert {name: item["spec"] for name, item in rendered.items()} == {
        name: item["spec"] for name, item in committed.items()
    }
    assert all(item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for item in rendered.values())


def test_crds_can_be_left_to_administrators() -> None:
    assert of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition") == []


def test_nothing_of_the_prometheus_operator_or_grafana_is_made_unasked(defaults: list[dict[str, Any]]) -> None:
    assert {item["apiVersion"] for item in defaults}.isdisjoint({"monitoring.coreos.com/v1"})
    assert len(of_kind(defaults, "ConfigMap")) == 1


def test_alerts_carry_their_runbook_and_can_be_left_out(everything: list[dict[str, Any]]) -> None:
    (rule,) = of_kind(everything, "PrometheusRule")
    alerts = {rule["alert"]: rule["annotations"] for group in rule["spec"]["groups"] for rule in group["rules"]}
    assert "SeatrialTrainerStarved" not in alerts
    assert alerts["SeatrialRunStuck"]["runbook_url"] == "https://docs.example.com/runbooks/stuck-buffer/"


def test_operator_and_broker_are_scraped_each_by_a_monitor_of_its_own(everything: list[dict[str, Any]]) -> None:
    monitors = {item["metadata"]["name"]: item["spec"] for item in of_kind(everything, "ServiceMonitor")}
    services = {item["metadata"]["name"]: item for item in of_kind(everything, "Service")}
    assert monitors.keys() == {"seatrial", "seatrial-broker"}
    for name, monitor in monitors.items():
        wanted = monitor["selector"]["matchLabels"].items()
        assert [other for other, item in services.items() if wanted <= item["metadata"]["labels"].items()] == [name]
        ports = {port["name"] for port in services[name]["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= ports


def test_a_watched_namespace_gets_roles_and_the_cluster_but_nodes_and_callers(everything: list[dict[str, Any]]) -> None:
    roles = {item["metadata"]["namespace"] for item in of_kind(everything, "Role")}
    assert roles == {"team-a", "team-b", "seatrial-system"}
    bindings = {item["metadata"]["name"] for item in of_kind(everything, "ClusterRoleBinding")}
    assert bindings == {"seatrial-system-seatrial-nodes", "seatrial-system-seatrial-broker-callers"}


def test_policies_of_runs_let_in_what_the_decision_says(everything: list[dict[str, Any]]) -> None:
    (policy,) = [
        item
        for item in of_kind(everything, "NetworkPolicy")
        if item["metadata"]["name"] == "seatrial-runs" and item["metadata"]["namespace"] == "team-a"
    ]
    assert policy["spec"]["podSelector"] == {"matchExpressions": [{"key": "seatrial.dev/run", "operator": "Exists"}]}
    found = {
        _source(rule["from"]): [port["port"] for port in rule.get("ports", [])] for rule in policy["spec"]["ingress"]
    }
    assert found == {
        "runs": [],
        "kuberay-system/kuberay-operator": [8265],
        "seatrial-system/seatrial": [8090],
        "monitoring/prometheus": [8090, 8080],
    }


def _source(peers: list[dict[str, Any]]) -> str:
    (peer,) = peers
    if "namespaceSelector" not in peer:
        return "runs"
    namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    return f"{namespace}/{peer['podSelector']['matchLabels']['app.kubernetes.io/name']}"


def test_notes_warn_where_rays_ports_are_open_and_kuberay_is_missing() -> None:
    notes = helm("install", "seatrial", str(CHART), "--dry-run=client", values={})
    assert "Ray's ports in" in notes.replace("\n", " ")
    assert "helm install kuberay-operator" in notes
    confined = helm("install", "seatrial", str(CHART), "--dry-run=client", values=EVERYTHING)
    assert "open to every pod" not in confined


def test_the_umbrella_names_the_versions_of_both_charts() -> None:
    umbrella = yaml.safe_load((ROOT / "charts" / "seatrial-with-kuberay" / "Chart.yaml").read_text())
    ours = yaml.safe_load((CHART / "Chart.yaml").read_text())
    versions = {item["name"]: item["version"] for item in umbrella["dependencies"]}
    assert versions == {"seatrial": ours["version"], "kuberay-operator": "1.5.0"}


def test_docs_list_every_alert_with_a_runbook_that_exists() -> None:
    page = (ROOT / "docs" / "cluster" / "observe.md").read_text()
    rules = yaml.safe_load((CHART / "rules" / "seatrial.yaml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{rule['alert']}`")]
        runbook = rule["annotations"]["runbook"]
        assert f"../runbooks/{runbook}.md" in row
        assert Path(ROOT / "docs" / "runbooks" / f"{runbook}.md").exists()
