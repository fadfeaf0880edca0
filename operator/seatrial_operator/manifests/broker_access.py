"""How pods that run trials reach the broker; no other pod of a run can."""

from seatrial_api.rlrun import RLRun
from seatrial_api.sandboxes import BROKER_AUDIENCE, BROKER_TOKEN_FILE, BROKER_VARIABLE, RUN_VARIABLE
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.names import Manifest
from seatrial_operator.manifests.pods import env_value
from seatrial_operator.manifests.storage import OWN_PREFIX, Volume

_TOKEN_SECONDS = 600
"""The least that Kubernetes has; the kubelet renews the token after four fifths of it."""


def broker_env(run: RLRun, config: OperatorConfig) -> list[Manifest]:
    """Where the broker is, and on whose account sandboxes are claimed; nothing where they are not pods."""
    if run.spec.sandbox.provider != "kubernetes":
        return []
    return access_env(run.metadata.name, config)


def broker_volumes(run: RLRun) -> list[Volume]:
    """The token that opens the broker; nothing where sandboxes are not pods."""
    if run.spec.sandbox.provider != "kubernetes":
        return []
    return [access_volume()]


def access_env(account: str, config: OperatorConfig) -> list[Manifest]:
    """Where the broker is, and on whose account sandboxes are claimed."""
    return [env_value(BROKER_VARIABLE, config.sandboxes.address or ""), env_value(RUN_VARIABLE, account)]


def access_volume() -> Volume:
    """A token of the pod's service account that opens the broker and nothing else."""
    token = {"audience": BROKER_AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": BROKER_TOKEN_FILE.name}
    source = {"projected": {"sources": [{"serviceAccountToken": token}]}}
    return Volume(f"{OWN_PREFIX}broker", source, (BROKER_TOKEN_FILE.parent,), is_read_only=True)
