"""The pods and policies of worlds."""

from dataclasses import replace
from typing import Any

import pytest

from seatrial_api.sandboxd_config import CONFIG_VARIABLE, HttpServer, SandboxdConfig, SandboxServer
from seatrial_api.sandboxes import START
from seatrial_api.world_image import WorldImage
from seatrial_operator.config import SandboxesConfig
from seatrial_operator.manifests.sandbox_pod import SandboxPlan, named, revision_of, sandbox_pod
from seatrial_operator.manifests.sandbox_policy import sandbox_policy

IMAGE = f"registry.test/acme@sha256:{'a' * 64}"
SIDECAR = {"name": "mail", "image": "registry.test/mail:v1", "port": 8001}

BRING = "seatrial_sandbox.bring"

type Object = dict[str, Any]


def world(**spec: Any) -> WorldImage:
    """A world."""
    manifest = {"apiVersion": "seatrial.dev/v1alpha1", "kind": "WorldImage", "metadata": {"name": "acme"}}
    return WorldImage.model_validate({**manifest, "spec": {"image": "registry.test/acme:v1", **spec}})


def plan(**changes: Any) -> SandboxPlan:
    """What pods are made of here."""
    return replace(SandboxPlan(SandboxesConfig(), "PEM", 3600.0, None, has_image_volumes=True), **changes)


def made(made_of: SandboxPlan | None = None, **spec: Any) -> Object:
    """The pod of a world."""
    return sandbox_pod(world(**spec), "uid", IMAGE, made_of or plan())


def containers(pod: Object) -> list[Object]:
    """All containers."""
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


def told_to(pod: Object) -> SandboxdConfig:
    """What `sandboxd` is told."""
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    return SandboxdConfig.model_validate_json(env[CONFIG_VARIABLE] or "")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"mcp": {"kind": "Sidecars", "sidecars": [SIDECAR]}},
        {"mcp": {"kind": "Archipelago", "port": 9000}},
        {"harnesses": True},
        {"populate": [{"image": "registry.test/files:v1", "target": "/data"}, {"image": "registry.test/more:v1"}]},
    ],
)
@pytest.mark.parametrize("has_image_volumes", [True, False])
def test_no_sandbox_has_rights_or_lacks_limits(spec: Object, has_image_volumes: bool) -> None:
    pod = made(plan(has_image_volumes=has_image_volumes), **spec)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod["spec"].keys()
    mounted = {mount["name"] for one in containers(pod) for mount in one["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
    for one in containers(pod):
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= one["resources"]["limits"].keys()
        assert one["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert all({"emptyDir", "image"} & volume.keys() for volume in pod["spec"]["volumes"])


def test_the_runtime_comes_from_an_image_volume_or_is_copied() -> None:
    mounted, copied = made(), made(plan(has_image_volumes=False))
    assert [one["name"] for one in mounted["spec"]["initContainers"]] == ["seatrial-world"]
    assert mounted["spec"]["volumes"][0] == {
        "name": "seatrial-runtime",
        "image": {"reference": "seatrial/sandbox-runtime:0.1.0"},
    }
    copier, world_copier = copied["spec"]["initContainers"]
    assert (copier["image"], world_copier["image"]) == ("seatrial/sandbox-runtime:0.1.0", IMAGE)
    assert copied["spec"]["volumes"][0] == {"name": "seatrial-runtime", "emptyDir": {"sizeLimit": "1Gi"}}
    for pod in (mounted, copied):
        (mount,) = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == "seatrial-runtime"]
        assert (mount["mountPath"], mount["readOnly"]) == ("/opt/seatrial", True)


def test_agents_of_others_come_to_the_worlds_that_want_them_and_to_their_agents_container_alone() -> None:
    mounted = made(harnesses=True, mcp={"kind": "Sidecars", "sidecars": [SIDECAR]})
    assert {"name": "seatrial-harnesses", "image": {"reference": "seatrial/harnesses:0.1.0"}} in mounted["spec"][
        "volumes"
    ]
    place = {"mountPath": "/opt/seatrial-harnesses", "readOnly": True}
    seen = [
        one["name"] for one in containers(mounted) for mount in one["volumeMounts"] if place.items() <= mount.items()
    ]
    assert seen == ["world"]
    assert "harnesses" not in str(made())


def test_agents_are_copied_by_the_runtimes_python_where_images_cannot_be_mounted() -> None:
    pod = made(plan(has_image_volumes=False), harnesses=True)
    _, copier, _ = pod["spec"]["initContainers"]
    assert (copier["name"], copier["image"]) == ("seatrial-harnesses", "seatrial/harnesses:0.1.0")
    assert copier["command"][3:] == [BRING, "/opt/seatrial-harnesses=/seatrial/stage"]
    assert [mount["mountPath"] for mount in copier["volumeMounts"]] == ["/opt/seatrial", "/seatrial/stage"]
    assert {"name": "seatrial-harnesses", "emptyDir": {"sizeLimit": "4Gi"}} in pod["spec"]["volumes"]


def test_sandboxd_is_told_of_its_world() -> None:
    spec = {"workdir": "/office", "mcp": {"servers": ["sheets"]}, "resources": {"limits": {"memory": "3Gi"}}}
    pod = made(**spec, env={"LANG": "C"})
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    told = told_to(pod)
    assert (told.public_key, told.workdir, told.limits.memory_mb) == ("PEM", "/office", 3072 - 256)
    assert told.servers == [SandboxServer(name="sheets", command="seatrial-mcp", args=["sheets"])]
    assert env["LANG"] == "C"


def test_an_agent_writes_into_bounded_volumes_alone() -> None:
    (world,) = made(resources={"limits": {"ephemeral-storage": "3Gi"}}, workdir="/office")["spec"]["containers"]
    pod = made(resources={"limits": {"ephemeral-storage": "3Gi"}}, workdir="/office")
    assert world["securityContext"]["readOnlyRootFilesystem"] is True
    writable = {one["name"]: one["mountPath"] for one in world["volumeMounts"] if not one.get("readOnly")}
    assert set(writable.values()) == {"/office", "/home", "/logs", "/solution", "/tests", "/tmp"}
    sizes = {one["name"]: one["emptyDir"] for one in pod["spec"]["volumes"] if "emptyDir" in one}
    assert [sizes[name] for name in writable] == [{"sizeLimit": "3Gi"}] * len(writable)


def test_no_two_sandboxes_share_a_user() -> None:
    users = {named(made(), f"acme-{number}")["spec"]["securityContext"]["runAsUser"] for number in range(1000)}
    assert len(users) == 1000
    assert min(users) >= 100_000
    assert named(made(), "acme-1") == named(made(), "acme-1")


def test_tool_servers_beside_a_world_are_sidecars_that_share_its_workdir() -> None:
    pod = made(mcp={"kind": "Sidecars", "sidecars": [SIDECAR]}, workdir="/office")
    files, sidecar = pod["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("mcp-mail", "Always")
    assert sidecar["startupProbe"]["tcpSocket"] == {"port": 8001}
    assert {"name": "seatrial-world", "mountPath": "/office"} in sidecar["volumeMounts"]
    assert {"name": "seatrial-world", "mountPath": "/office"} in pod["spec"]["containers"][0]["volumeMounts"]
    assert (files["image"], files["command"][3:]) == (
        IMAGE,
        [BRING, "--identity", "/seatrial/identity", "--if-there", "/office=/seatrial/stage"],
    )
    assert told_to(pod).servers == [HttpServer(name="mail", url="http://127.0.0.1:8001/mcp/")]


def test_a_gateway_is_the_worlds_image_as_it_was_made_and_has_the_worlds_resources() -> None:
    asked = {"requests": {"memory": "3Gi"}, "limits": {"memory": "6Gi"}}
    env = {"APPS": "mail"}
    pod = made(mcp={"kind": "Archipelago", "port": 9000}, resources=asked, env=env)
    _, gateway = pod["spec"]["initContainers"]
    assert (gateway["name"], gateway["image"], gateway["restartPolicy"]) == ("mcp-archipelago", IMAGE, "Always")
    assert "command" not in gateway
    assert gateway["env"] == [{"name": "APPS", "value": "mail"}]
    assert gateway["resources"]["limits"]["memory"] == "6Gi"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == "2Gi"
    assert told_to(pod).servers == [HttpServer(name="archipelago", url="http://127.0.0.1:9000/mcp/")]


def test_a_gateway_may_have_a_command_of_the_worlds() -> None:
    pod = made(mcp={"kind": "Archipelago", "command": ["/serve", "all"]})
    assert pod["spec"]["initContainers"][1]["command"] == ["/serve", "all"]


def test_a_gateway_that_starts_with_a_task_waits_for_its_slug_and_nothing_waits_for_it() -> None:
    pod = made(mcp={"kind": "Archipelago", "command": ["/app/start.sh", "{task}"]})
    _, gateway = pod["spec"]["initContainers"]
    assert gateway["command"] == [*START, "/app/start.sh", "{task}"]
    assert not {"startupProbe", "readinessProbe"} & set(gateway)
    place = {"name": "seatrial-task", "mountPath": "/seatrial/task"}
    assert place in gateway["volumeMounts"]
    assert place in pod["spec"]["containers"][0]["volumeMounts"]
    assert "seatrial-runtime" in {mount["name"] for mount in gateway["volumeMounts"]}
    assert "seatrial-task" in {volume["name"] for volume in pod["spec"]["volumes"]}
    url = "http://127.0.0.1:8080/mcp/"
    assert told_to(pod).servers == [HttpServer(name="archipelago", url=url, starts_with_task=True)]


@pytest.mark.parametrize("has_image_volumes", [True, False])
def test_files_from_images_are_copied_below_the_workdir_or_to_a_volume_of_their_own(has_image_volumes: bool) -> None:
    inside = {"image": "registry.test/files:v1", "source": "/docs", "target": "/workspace/docs"}
    outside = {"image": "registry.test/more:v1", "target": "/data"}
    pod = made(plan(has_image_volumes=has_image_volumes), populate=[inside, outside])
    into_workdir, into_data = pod["spec"]["initContainers"][-2:]
    mount = "/seatrial/files" if has_image_volumes else ""
    assert into_workdir["command"][3:] == [BRING, f"{mount}/docs=/seatrial/stage/docs"]
    assert into_data["command"][3:] == [BRING, f"{mount or '/'}=/seatrial/stage"]
    images = [IMAGE, IMAGE] if has_image_volumes else ["registry.test/files:v1", "registry.test/more:v1"]
    assert [into_workdir["image"], into_data["image"]] == images
    assert {"name": "target-1", "mountPath": "/data"} in pod["spec"]["containers"][0]["volumeMounts"]


def test_requests_above_the_default_limit_lift_it() -> None:
    resources = made(resources={"requests": {"memory": "16Gi"}, "limits": {"cpu": "100m"}})["spec"]["containers"][0][
        "resources"
    ]
    assert resources["limits"] == {"cpu": "100m", "memory": "16Gi", "ephemeral-storage": "8Gi"}
    assert resources["requests"] == {"memory": "16Gi", "ephemeral-storage": "1Gi"}


def test_a_revision_changes_with_the_world_and_not_with_how_long_sandboxes_live() -> None:
    assert revision_of(made()) == revision_of(made(plan(lifetime_seconds=10.0)))
    assert revision_of(made()) != revision_of(made(env={"LANG": "C"}))
    assert revision_of(made()) != revision_of(made(plan(public_key="another")))
    assert revision_of(named(made(), "acme-1")) == revision_of(made())
    assert "name" not in made()["metadata"]


def test_a_policy_denies_all_but_trial_hosts_and_what_the_world_lists() -> None:
    closed = sandbox_policy(world(), "uid", SandboxesConfig())["spec"]
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in closed
    assert closed["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"seatrial.dev/role": "agents"}}}]
    assert closed["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 8091}]
    egress = [{"cidr": "10.0.0.0/8", "ports": [443]}, {"cidr": "192.168.0.1/32"}]
    mcp = {"kind": "Sidecars", "sidecars": [SIDECAR]}
    opened = sandbox_policy(world(egress=egress, mcp=mcp), "uid", SandboxesConfig())["spec"]
    assert opened["ingress"] == closed["ingress"]  # tool servers are reached through `sandboxd` alone
    assert opened["egress"] == [
        {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"protocol": "TCP", "port": 443}]},
        {"to": [{"ipBlock": {"cidr": "192.168.0.1/32"}}]},
    ]
