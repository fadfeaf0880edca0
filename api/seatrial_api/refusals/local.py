"""What `seatrial run` cannot honour on one machine."""

from collections.abc import Iterator

from seatrial_api.refusals.refusal import Refusal, Row, asked_for
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.judge import JudgeKey
from seatrial_api.spec.model import S3Source, Source
from seatrial_api.spec.operations import Wandb
from seatrial_api.spec.topology import Resources, RoleSpec
from seatrial_api.walk import objects

_IN_CLUSTER = "for a cluster; remove it, or let the operator run the manifest"

_LOCAL: tuple[Row, ...] = (
    (
        "spec.async.weightSync.method",
        lambda spec: spec.async_.weight_sync.method == "nccl",
        "nccl is set up by the operator; choose gloo, or files where engine and trainer share a GPU",
    ),
    ("spec.topology.nodes", lambda spec: spec.topology.nodes > 1, f"more than this one machine is {_IN_CLUSTER}"),
    (
        "spec.topology.scheduling",
        lambda spec: spec.topology.scheduling.kueue is not None or spec.topology.scheduling.volcano is not None,
        f"a queue is {_IN_CLUSTER}",
    ),
    (
        "spec.sandbox.provider",
        lambda spec: spec.sandbox.provider == "kubernetes",
        "this machine has no pods; choose local, or harbor:<environment>",
    ),
    (
        "spec.storage.pvc",
        lambda spec: spec.storage.pvc is not None,
        "a local run keeps what it writes in a folder or in S3; set storage.path or storage.s3",
    ),
    ("spec.suspend", lambda spec: spec.suspend, "a local run is suspended with Ctrl-C; remove it"),
    (
        "spec.ttlSecondsAfterFinished",
        lambda spec: spec.ttl_seconds_after_finished is not None,
        f"removing a finished run is {_IN_CLUSTER}",
    ),
)


def on_this_machine(spec: RLRunSpec) -> Iterator[Refusal]:
    """What the local launcher cannot honour besides what nobody can."""
    yield from asked_for(_LOCAL, spec)
    for path, item, _ in objects(spec, path="spec"):
        match item:
            case Source(pvc=pvc) if pvc is not None:
                yield Refusal(
                    f"{path}.pvc", "a local run reads from folders, S3 and Hugging Face; copy it and set path, s3 or hf"
                )
            case S3Source(secret=str()):
                yield Refusal(f"{path}.secret", "a Secret is in a cluster; remove it and set AWS_ACCESS_KEY_ID")
            case RoleSpec(image=image, pod_template=template) if image is not None or template:
                yield Refusal(path, f"a pod's image and podTemplate are {_IN_CLUSTER}")
            case Resources() if item != Resources():
                yield Refusal(path, f"a pod's resources are {_IN_CLUSTER}")
            case JudgeKey(secret=str()):
                yield Refusal(f"{path}.secret", "a Secret is in a cluster; set env to the variable that holds the key")
            case Wandb(secret=str()):
                yield Refusal(f"{path}.secret", "a Secret is in a cluster; remove it and set WANDB_API_KEY")
            case _:
                pass
