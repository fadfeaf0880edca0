"""Golden manifests of the operator: what its builders make of typical runs, and of a world that is inspected.

`python -m tests.golden_manifests` rewrites them; read the difference before committing it.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from seatrial.manifest import load_run
from seatrial_api.playbook import segments_of
from seatrial_api.rlrun import RLRun
from seatrial_api.world_image import Inspection
from seatrial_operator.config import InspectionsConfig, OperatorConfig, SandboxesConfig
from seatrial_operator.manifests.inspection import inspected_revision, inspection_job
from seatrial_operator.manifests.pool import rollout_pool
from seatrial_operator.manifests.rayjob import ray_job
from seatrial_operator.manifests.secret import driver_request, request_secret
from tests.manifests import run_manifest
from tests.worlds import DIGEST, world

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
FOLDER = ROOT / "tests" / "unit" / "operator" / "golden"

UID = "5ea7a1a1-0000-4000-8000-000000000000"
CLAIM = {"pvc": {"claim": "runs", "path": "team-a"}}

GLOO = {"spec__async__weightSync": {"method": "gloo"}, "spec__storage": CLAIM, "spec__sandbox": {"provider": "local"}}
KEPT_IN_S3: dict[str, Any] = {
    "spec__sandbox": {"provider": "local"},
    "spec__async__weightSync": {"method": "gloo"},
    "spec__storage": {"s3": {"uri": "s3://runs/team-a", "endpointUrl": "http://minio:9000", "secret": "minio"}},
    "spec__model__source": {"hf": {"repo": "Qwen/Qwen3-0.6B"}},
    "spec__data__train__source": {"s3": {"uri": "s3://tasks/train", "secret": "minio"}},
    "spec__data__validation__source": {"path": "/tasks/validation"},
    "spec__data__heldOut__source": {"pvc": {"claim": "tasks", "path": "held-out"}},
}

RDMA: dict[str, Any] = {
    "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
    "spec": {
        "nodeSelector": {"node.kubernetes.io/instance-type": "p5.48xlarge"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchExpressions": [{"key": "seatrial.dev/run", "operator": "Exists"}]},
                    }
                ]
            }
        },
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False, "fsGroup": None},
        "containers": [
            {
                "name": "ray",
                "env": [{"name": "FI_PROVIDER", "value": "efa"}, {"name": "NCCL_DEBUG", "value": "WARN"}],
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                "volumeMounts": [{"name": "gdrcopy", "mountPath": "/dev/gdrdrv"}],
            },
            {"name": "fabric-exporter", "image": "example.com/fabric-exporter:1", "ports": [{"containerPort": 9100}]},
        ],
        "volumes": [
            {"name": "gdrcopy", "hostPath": {"path": "/dev/gdrdrv"}},
            {"name": "shm", "emptyDir": {"sizeLimit": "256Gi"}},
        ],
    },
}

EFA = {"limits": {"vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi", "memory": "1600Gi"}}
DRA = {
    "spec": {
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight-gpus"}],
    }
}


def texts() -> Mapping[str, Callable[[], str]]:
    """How the text of each golden file is made."""
    runs = {name: partial(rendered, run, segments, config) for name, run, segments, config in cases()}
    return {**runs, "inspection": inspection}


def cases() -> Iterator[tuple[str, RLRun, tuple[int, ...], OperatorConfig]]:
    """Name, run, segments and the operator's settings of each golden file of a run."""
    config = OperatorConfig(sandboxes=SandboxesConfig(address="seatrial-broker.seatrial-system.svc:8092"))
    quickstart = load_run(EXAMPLES / "quickstart" / "cluster.yaml")
    yield "quickstart", quickstart, (0, 1, 2), config
    yield "apex-35b", load_run(EXAMPLES / "apex" / "qwen35-35b-a3b.yaml"), (1,), config
    yield "apex-397b", load_run(EXAMPLES / "apex" / "qwen35-397b-a17b.yaml"), (0, 1), config
    single = load_run(EXAMPLES / "single-gpu" / "run.yaml", ["spec.storage={pvc: {claim: runs}}"])
    yield "single-gpu", single, (1,), config
    kueue = {"nodes": 2, "scheduling": {"kueue": {"queue": "team-a", "priorityClass": "research"}}}
    yield "kueue", made(**GLOO, spec__topology=kueue), (1,), config
    volcano = {"nodes": 2, "scheduling": {"volcano": {"queue": "team-a", "priorityClass": "research"}}}
    yield "volcano", made(**GLOO, spec__topology=volcano), (1,), config
    role = {"resources": EFA, "podTemplate": RDMA}
    rdma = {"nodes": 4, "inferenceTrainRatio": "3:1", "rollout": role, "train": role, "hold": "Run"}
    yield "rdma", made(**GLOO, spec__topology=rdma), (0,), config
    yield "s3", made(**KEPT_IN_S3), (1,), config
    yield "everything-else", everything_else(), (1,), settings()


def made(**changes: Any) -> RLRun:
    """The small run with every kind of stage, changed."""
    return RLRun.model_validate(run_manifest(metadata__namespace="team-a", **changes))


def everything_else() -> RLRun:
    """Claims, secrets, devices by dynamic allocation, and storage that the operator brings."""
    claims = {"resources": {"claims": [{"name": "gpus"}]}, "podTemplate": DRA}
    return made(
        spec__sandbox={"provider": "local"},
        spec__model__source={"pvc": {"claim": "models", "path": "qwen3"}},
        spec__data__train__source={"pvc": {"claim": "runs", "path": "tasks/train"}},
        spec__data__heldOut__source={
            "s3": {"uri": "s3://tasks/held-out", "endpointUrl": "http://minio:9000", "secret": "minio"}
        },
        spec__tracking={"wandb": {"project": "p", "secret": "wandb"}},
        spec__topology={"nodes": 2, "rollout": claims, "train": {**claims, "image": "example.com/ray:2.60.0"}},
    )


def settings() -> OperatorConfig:
    """Settings of an operator of a team that brings its own of everything."""
    return OperatorConfig.model_validate(
        {
            "images": {"rayCpu": "example.com/ray-cpu:1", "rayGpu": "example.com/ray-gpu:1"},
            "imagePullSecrets": ["registry"],
            "storage": {"pvc": {"claim": "runs", "path": "shared"}},
            "rayAuth": "token",
        }
    )


def objects(run: RLRun, segments: tuple[int, ...], config: OperatorConfig) -> list[dict[str, Any]]:
    """Everything that the operator makes for the first attempts at some segments."""
    cut = segments_of(run.spec.stages, run.spec.topology.hold)
    made_of = [rollout_pool(run, UID)]
    for index in segments:
        request = driver_request(run, UID, cut[index], config)
        made_of.append(request_secret(run, UID, cut[index], 0, request, "token"))
        made_of.append(ray_job(run, UID, cut[index], 0, config))
    return made_of


def inspection() -> str:
    """The Job that inspects a world, of an operator that keeps reports and whose nodes are tainted."""
    tolerations = {"spec": {"tolerations": [{"key": "seatrial.dev/worlds", "operator": "Exists"}]}}
    config = settings().model_copy(
        update={
            "sandboxes": SandboxesConfig(address="seatrial-broker.seatrial-system.svc:8092"),
            "inspections": InspectionsConfig(pod_template=tolerations),
        }
    )
    asked = {"tasks": {"source": {"pvc": {"claim": "tasks", "path": "acme"}}}, "corpora": [{"source": {"path": "old"}}]}
    inspected = world(inspection=asked)
    revision = inspected_revision("acme", inspected.spec, DIGEST)
    job = inspection_job(inspected, UID, Inspection.model_validate(asked), revision, config)
    return yaml.safe_dump(job, sort_keys=False, width=120)


def rendered(run: RLRun, segments: tuple[int, ...], config: OperatorConfig) -> str:
    """The text of a golden file; of a Secret's request it shows all but the run itself."""
    shown = [readable(item) if item["kind"] == "Secret" else item for item in objects(run, segments, config)]
    return yaml.safe_dump_all(shown, sort_keys=False, width=120)


def readable(secret: dict[str, Any]) -> dict[str, Any]:
    """A Secret with its data decoded, and without the run in it."""
    request = json.loads(b64decode(secret["data"]["run.json"]))
    request["run"] = request["run"]["metadata"]["name"]
    return {**secret, "data": {"run.json": request, "token": b64decode(secret["data"]["token"]).decode()}}


def main() -> None:
    """Rewrite every file."""
    for name, text in texts().items():
        (FOLDER / f"{name}.yaml").write_text(text())


if __name__ == "__main__":
    main()
