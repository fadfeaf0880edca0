"""RolloutPools for tests."""

from typing import Any

from seatrial_api.rollout_pool import RolloutPool, RolloutPoolStatus

MODEL = {"source": {"pvc": {"claim": "models", "path": "qwen"}}, "contextLength": {"train": 2048}}


def pool(status: RolloutPoolStatus | None = None, name: str = "office", **spec: Any) -> RolloutPool:
    """A pool on its own with two engines on CPUs, with fields of its spec changed."""
    manifest = {
        "apiVersion": "seatrial.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"model": MODEL, "engines": {"replicas": 2}, **spec},
    }
    return RolloutPool.model_validate(manifest).model_copy(update={"status": status})


def owned_pool(status: RolloutPoolStatus | None = None) -> RolloutPool:
    """The pool of a run."""
    return pool(status).model_copy(update={"spec": pool().spec.model_copy(update={"model": None, "run": "office"})})
