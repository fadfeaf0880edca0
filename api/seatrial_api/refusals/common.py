"""What nobody can honour yet, on one machine or in a cluster."""

from collections.abc import Iterator

from seatrial_api.ablation import patched_spec
from seatrial_api.errors import InvalidInputError
from seatrial_api.refusals.refusal import Refusal, Row, asked_for
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.stages import AblateArm

_EVERYWHERE: tuple[Row, ...] = (
    (
        "spec.checkpoint.asynchronous",
        lambda spec: spec.checkpoint.asynchronous,
        "checkpoints are written between two steps so far; remove it",
    ),
)

TINKER_ALPHA = 32
"""The service scales all adapters by this over their rank, and has no setting for it."""

_OF_TINKER: tuple[Row, ...] = (
    (
        "spec.model.source",
        lambda spec: spec.model.source.hf is None,
        "the Tinker service trains models of its own list, by their names on the Hugging Face hub; use hf",
    ),
    (
        "spec.model.source.hf.revision",
        lambda spec: spec.model.source.hf is not None and spec.model.source.hf.revision != "main",
        "the Tinker service has no revisions of its models; set it to main",
    ),
    (
        "spec.model.lora.alpha",
        lambda spec: spec.model.lora is not None and spec.model.lora.alpha != TINKER_ALPHA,
        f"the Tinker service scales adapters by {TINKER_ALPHA} over their rank; set it to {TINKER_ALPHA}",
    ),
    (
        "spec.model.lora.targetModules",
        lambda spec: spec.model.lora is not None and spec.model.lora.target_modules is not None,
        "the Tinker service puts adapters beside all layers of attention and MLPs; remove it",
    ),
    (
        "spec.trainer.ranks",
        lambda spec: spec.trainer.ranks > 1,
        "one process speaks to the Tinker service, which lays the model out by itself; set it to 1",
    ),
    (
        "spec.trainer.offloadOptimizer",
        lambda spec: spec.trainer.offload_optimizer,
        "the Tinker service keeps the optimiser; set it to false",
    ),
    (
        "spec.trainer.recompute",
        lambda spec: spec.trainer.recompute != "None",
        "the Tinker service keeps activations as it sees fit; set it to None",
    ),
    (
        "spec.async.weightSync.method",
        lambda spec: spec.async_.weight_sync.method == "nccl",
        "the process that fetches weights from the Tinker service has no GPU; choose gloo or files",
    ),
)
"""What the Tinker service has no counterpart for."""


def _of_settings(spec: RLRunSpec) -> Iterator[Refusal]:
    yield from asked_for(_EVERYWHERE, spec)
    if spec.trainer.backend == "tinker":
        yield from asked_for(_OF_TINKER, spec)


def _of_arm(spec: RLRunSpec, arm: AblateArm, path: str) -> Iterator[Refusal]:
    """What only an arm of an ablation asks for."""
    try:
        patched = patched_spec(spec, arm)
    except InvalidInputError as error:
        yield Refusal(path, str(error))
        return
    known = {refusal.path for refusal in _of_settings(spec)}
    for refusal in _of_settings(patched):
        if refusal.path not in known:
            yield Refusal(path, f"{refusal.path}: {refusal.message}")


def everywhere(spec: RLRunSpec) -> Iterator[Refusal]:
    """What no launcher can honour."""
    yield from _of_settings(spec)
    for index, stage in enumerate(spec.stages):
        path = f"spec.stages[{index}]"
        for number, arm in enumerate(stage.ablate.arms if stage.ablate else []):
            yield from _of_arm(spec, arm, f"{path}.ablate.arms[{number}].patch")
