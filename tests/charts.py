"""The chart as Helm renders it, and Helm against a cluster."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import Cluster
from hack.cluster.layout import BIN, ROOT

CHART = ROOT / "charts" / "seatrial"
RELEASE = "seatrial"
NAMESPACE = "seatrial-system"
OPERATOR = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
KUBERAY = "system:serviceaccount:kuberay-system:kuberay-operator"
EVERYTHING = {
    "config": {"namespaces": ["team-a", "team-b"]},
    "replicas": 2,
    "monitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {
        "enabled": True,
        "disabled": ["SeatrialTrainerStarved"],
        "runbookBaseUrl": "https://docs.example.com/",
    },
    "dashboards": {"enabled": True},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/seatrial"}},
    "imagePullSecrets": ["registry"],
    "priorityClassName": "system-cluster-critical",
    "tolerations": [{"operator": "Exists"}],
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "podAnnotations": {"example.com/owner": "rl"},
    "podLabels": {"example.com/team": "rl"},
}
"""Values with which the chart renders all that it can."""


class _Loader(yaml.SafeLoader):
    """Reads `1e-06` as Kubernetes does, a number; YAML 1.1 wants a dot in it."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+e[-+]?[0-9]+$"), list("-+0123456789"))


class HelmError(Exception):
    """Helm refused, in its own words."""


def helm(*arguments: str, cluster: Cluster | None = None, values: Mapping[str, Any] | None = None) -> str:
    """Run Helm in the release's namespace.

    Raises:
        HelmError: if it fails, with what it said.
    """
    program = BIN / "helm"
    if not program.exists():
        pytest.skip("needs helm (make cluster-bin)")
    options = ["--namespace", NAMESPACE]
    if values is not None:
        options += ["--values", "-"]
    environment = {"PATH": "/usr/bin:/bin", "HELM_DRIVER": "secret"}
    if cluster is not None:
        home = str(cluster.layout.folder / "helm")
        environment |= {"KUBECONFIG": str(cluster.kubeconfig), "HELM_CACHE_HOME": home, "HOME": home}
    done = subprocess.run(
        [str(program), *arguments, *options],
        input=yaml.safe_dump(dict(values or {})),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise HelmError(done.stderr)
    return done.stdout


def render(values: Mapping[str, Any] | None = None, *options: str, chart: Path = CHART) -> list[dict[str, Any]]:
    """Every object that the chart makes."""
    text = helm("template", RELEASE, str(chart), *options, values=values or {})
    return [item for item in yaml.load_all(text, _Loader) if item]


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    """Those of some kinds."""
    return [item for item in objects if item["kind"] in kinds]


def operator_kubeconfig(cluster: Cluster, folder: Path) -> Path:
    """A kubeconfig with the rights that the chart gives to the operator, and no others; good for an hour."""
    token = cluster.kubectl("-n", NAMESPACE, "create", "token", RELEASE).strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
