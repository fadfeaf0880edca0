"""A release through its life: installed, upgraded to newer CRDs, rolled back, uninstalled, installed again."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster import Cluster, Grade
from tests.charts import CHART, NAMESPACE, RELEASE, HelmError, helm
from tests.clusters import cluster_of
from tests.manifests import run_manifest

FIELD = "ttlSecondsAfterFinished"
"""A field that the older version of the API does not know."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One of this test's own: Helm owns what it installs."""
    yield from cluster_of(Grade.CONTROL_PLANE)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as it was before the API had one of its fields."""
    chart = tmp_path_factory.mktemp("older") / "seatrial"
    shutil.copytree(CHART, chart)
    crd = chart / "files" / "crds" / "rlruns.yaml"
    definition = yaml.safe_load(crd.read_text())
    del _spec_of(definition)[FIELD]
    crd.write_text(yaml.safe_dump(definition))
    return chart


def _spec_of(definition: dict[str, Any]) -> dict[str, Any]:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    properties: dict[str, Any] = schema["properties"]["spec"]["properties"]
    return properties


def served_fields(cluster: Cluster) -> set[str]:
    return set(_spec_of(json.loads(cluster.kubectl("get", "crd", "rlruns.seatrial.dev", "-o", "json"))))


def stored_run(cluster: Cluster) -> dict[str, Any]:
    return dict(json.loads(cluster.kubectl("get", "rlrun", "run", "-o", "json")))


def test_a_release_is_upgraded_with_its_crds_and_takes_no_run_along(cluster: Cluster, older: Path) -> None:
    helm("install", RELEASE, str(older), "--create-namespace", cluster=cluster)
    cluster.await_established("crd/rlruns.seatrial.dev")
    manifest = run_manifest(**{f"spec__{FIELD}": 60})
    cluster.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(manifest))
    uid = stored_run(cluster)["metadata"]["uid"]
    assert FIELD not in stored_run(cluster)["spec"]

    helm("upgrade", RELEASE, str(CHART), cluster=cluster)
    assert FIELD in served_fields(cluster)
    cluster.kubectl("patch", "rlrun", "run", "--type=merge", "-p", json.dumps({"spec": {FIELD: 60}}))
    assert stored_run(cluster)["spec"][FIELD] == 60

    helm("rollback", RELEASE, cluster=cluster)
    assert FIELD not in served_fields(cluster)

    helm("uninstall", RELEASE, cluster=cluster)
    assert cluster.kubectl("get", "deployments", "-n", NAMESPACE, "-o", "name") == ""
    assert stored_run(cluster)["metadata"]["uid"] == uid

    helm("install", RELEASE, str(CHART), cluster=cluster)
    assert FIELD in served_fields(cluster)
    assert stored_run(cluster)["metadata"]["uid"] == uid


def test_a_release_takes_over_older_crds_that_an_administrator_applied(cluster: Cluster, older: Path) -> None:
    """As docs/cluster/upgrade.md says."""
    helm("uninstall", RELEASE, cluster=cluster)
    names = [path.stem for path in (CHART / "files" / "crds").glob("*.yaml")]
    crds = [f"crd/{name}.seatrial.dev" for name in names]
    # The API server forgets to delete a CRD, for five minutes, if it meets the kind's storage for the first time then.
    cluster.kubectl("delete", ",".join(names), "--all")
    cluster.kubectl("delete", *crds)
    helm("install", RELEASE, str(CHART), cluster=cluster, values={"crds": {"install": False}})
    cluster.apply_crds(older / "files" / "crds")
    cluster.kubectl(
        *("annotate", *crds),
        *(f"meta.helm.sh/release-name={RELEASE}", f"meta.helm.sh/release-namespace={NAMESPACE}"),
    )
    cluster.kubectl("label", *crds, "app.kubernetes.io/managed-by=Helm")
    values = {"crds": {"install": True}}
    with pytest.raises(HelmError, match="conflict"):
        helm("upgrade", RELEASE, str(CHART), cluster=cluster, values=values)
    helm("upgrade", RELEASE, str(CHART), "--force-conflicts", cluster=cluster, values=values)
    assert FIELD in served_fields(cluster)
