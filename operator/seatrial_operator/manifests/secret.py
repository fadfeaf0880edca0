"""The Secret of an attempt: what the driver is asked to do, and the token with which the operator asks it."""

from base64 import b64encode
from pathlib import Path

from seatrial_api.driver_request import DriverRequest
from seatrial_api.playbook import Segment
from seatrial_api.rlrun import RLRun
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.names import Manifest, attempt_labels, job_name, owned_by_run
from seatrial_operator.manifests.rayjob import pod_counts
from seatrial_operator.manifests.storage import base_dir, kept_in, storage_of

REQUEST_KEY = "run.json"
TOKEN_KEY = "token"  # noqa: S105  a key, not a token


def driver_request(
    run: RLRun, uid: str, segment: Segment, config: OperatorConfig, *, resume: bool = False
) -> DriverRequest:
    """What the driver of a segment is asked to do.

    Args:
        run: The run; its status stays behind.
        uid: Its `metadata.uid`.
        segment: The stages to run.
        config: The operator's settings.
        resume: Whether a person asked for a stage whose gate failed to be run anew.
    """
    storage = storage_of(run.spec, config)
    return DriverRequest(
        run=run.model_copy(update={"status": None}),
        base_dir=Path(base_dir(storage)),
        stages=list(segment.stages),
        resume=resume,
        kept_in=kept_in(run, uid, storage),
        pods={role.value: count for role, count in pod_counts(run.spec, segment).items()},
    )


def request_secret(
    run: RLRun, uid: str, segment: Segment, attempt: int, request: DriverRequest, token: str
) -> Manifest:
    """The Secret of an attempt, of the same name as its RayJob; it never changes."""
    name = job_name(run.metadata.name, segment.index, attempt)
    data = {REQUEST_KEY: request.model_dump_json(by_alias=True), TOKEN_KEY: token}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owned_by_run(run, uid, name, attempt_labels(run, segment, attempt)),
        "type": "Opaque",
        "immutable": True,
        "data": {key: b64encode(value.encode()).decode() for key, value in data.items()},
    }
