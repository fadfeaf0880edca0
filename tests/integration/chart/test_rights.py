"""The operator's ServiceAccount may do what the operator does, and nothing more."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hack.cluster import Cluster
from hack.cluster.errors import CommandError
from tests.charts import NAMESPACE, OPERATOR, of_kind, operator_kubeconfig, render

READ = ("get", "list", "watch")
GRANTED = {
    "seatrial.dev/rlruns": (*READ, "delete"),
    "seatrial.dev/rolloutpools": (*READ, "create", "patch"),
    "seatrial.dev/worldimages": READ,
    "seatrial.dev/rlruns/status": ("patch",),
    "seatrial.dev/rolloutpools/status": ("patch",),
    "seatrial.dev/worldimages/status": ("patch",),
    "ray.io/rayjobs": (*READ, "create", "delete"),
    "ray.io/rayclusters": (*READ, "create", "patch", "delete"),
    "batch/jobs": ("list", "watch", "create", "patch", "delete"),
    "/pods": ("list", "watch", "create", "delete"),
    "/podtemplates": ("create",),
    "/secrets": ("get", "create", "patch", "delete"),
    "/services": ("get", "create"),
    "/persistentvolumeclaims": ("get",),
    "/serviceaccounts": ("get",),
    "events.k8s.io/events": ("create",),
}
BROKER_GRANTED = {
    "seatrial.dev/rolloutpools": ("list", "watch"),
    "seatrial.dev/worldimages": ("list", "watch"),
    "seatrial.dev/rolloutpools/status": ("patch",),
    "/pods": (*READ, "create", "patch", "delete"),
    "networking.k8s.io/networkpolicies": ("get", "create", "patch"),
}
LEASE = "coordination.k8s.io/leases"


class Right(NamedTuple):
    """One verb on one resource."""

    verb: str
    resource: str
    """`group/resource`, or `group/resource/subresource`."""
    name: str = ""
    """The one object that it is about; all if empty."""


NODES = Right("list", "/nodes")
"""Of the whole cluster, since nodes are in no namespace."""


def rights(cluster: Cluster, namespace: str, user: str = OPERATOR) -> set[Right]:
    """All that a service account may do in a namespace, or to the whole cluster, by the API server's own account."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    groups = [f"--as-group={group}" for group in ("system:serviceaccounts", "system:authenticated")]
    answer = cluster.kubectl(
        "create", "--validate=false", "-o", "json", "-f", "-", f"--as={user}", *groups, stdin=json.dumps(review)
    )
    status = json.loads(answer)["status"]
    assert not status["incomplete"]
    return {right for rule in status["resourceRules"] for right in _expanded(rule)}


def _expanded(rule: dict[str, Any]) -> set[Right]:
    return {
        Right(verb, f"{group}/{resource}", name)
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or [""]
    }


def own_rights(cluster: Cluster, namespace: str, user: str = OPERATOR) -> set[Right]:
    """Those that not every service account has."""
    return rights(cluster, namespace, user) - rights(cluster, namespace, "system:serviceaccount:team-c:somebody")


@pytest.mark.parametrize("namespace", ["team-a", "team-b"])
def test_in_a_team_the_operator_may_do_what_it_does_and_nothing_else(installed: Cluster, namespace: str) -> None:
    granted = {Right(verb, resource) for resource, verbs in GRANTED.items() for verb in verbs}
    assert own_rights(installed, namespace) == {NODES, *granted}


def test_in_its_own_namespace_it_may_hold_its_lease_and_no_other(installed: Cluster) -> None:
    assert own_rights(installed, NAMESPACE) == {
        NODES,
        Right("create", LEASE),
        *(Right(verb, LEASE, "seatrial-operator") for verb in ("get", "patch")),
    }


@pytest.mark.parametrize("namespace", ["team-c", "kube-system"])
def test_elsewhere_it_may_do_nothing(installed: Cluster, namespace: str) -> None:
    assert own_rights(installed, namespace) == {NODES}


def test_the_broker_may_make_and_claim_sandboxes_and_nothing_else(installed: Cluster) -> None:
    broker = f"{OPERATOR}-broker"
    everywhere = {
        Right("create", "authentication.k8s.io/tokenreviews"),
        Right("get", "node.k8s.io/runtimeclasses", "gvisor"),
    }
    team = {Right(verb, resource) for resource, verbs in BROKER_GRANTED.items() for verb in verbs}
    assert own_rights(installed, "team-a", broker) == {*everywhere, *team}
    assert own_rights(installed, "team-c", broker) == everywhere
    assert own_rights(installed, NAMESPACE, broker) == {
        *everywhere,
        Right("create", LEASE),
        *(Right(verb, LEASE, "seatrial-broker") for verb in ("get", "patch")),
        Right("create", "/secrets"),
        Right("get", "/secrets", "seatrial-broker-key"),
    }


def test_without_namespaces_it_has_the_same_rights_everywhere(installed: Cluster) -> None:
    release = {"fullnameOverride": "everywhere", "crds": {"install": False}}
    installed.apply(*of_kind(render(release), "ClusterRole", "ClusterRoleBinding", "ServiceAccount"))
    everywhere = f"system:serviceaccount:{NAMESPACE}:everywhere"
    granted = {Right(verb, resource) for resource, verbs in GRANTED.items() for verb in verbs}
    assert granted <= rights(installed, "team-c", everywhere)


def test_a_token_of_the_service_account_is_good_for_just_that(installed: Cluster, tmp_path: Path) -> None:
    kubeconfig = operator_kubeconfig(installed, tmp_path)
    as_operator = (f"--kubeconfig={kubeconfig}", "-n", "team-a")
    assert OPERATOR in installed.kubectl("auth", "whoami", *as_operator)
    installed.kubectl("get", "rlruns", *as_operator)
    with pytest.raises(CommandError, match='cannot list resource "secrets"'):
        installed.kubectl("get", "secrets", *as_operator)


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("edit", {"create", "patch", "delete", "get"}, set()),
        ("view", {"get"}, {"create", "patch", "delete"}),
    ],
)
def test_a_teams_own_roles_cover_runs(installed: Cluster, role: str, may: set[str], may_not: set[str]) -> None:
    aggregated = json.loads(
        installed.kubectl(
            "get", "clusterrole", "-l", f"rbac.authorization.k8s.io/aggregate-to-{role}=true", "-o", "json"
        )
    )["items"]
    verbs = {
        verb
        for item in aggregated
        for rule in item["rules"] or []
        if "rlruns" in rule["resources"]
        for verb in rule["verbs"]
    }
    # `edit` also holds what is aggregated to `view`.
    verbs |= {"get", "list", "watch"} if role == "edit" else set()
    assert may <= verbs
    assert not may_not & verbs
