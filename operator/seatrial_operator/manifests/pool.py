"""The RolloutPool of a run."""

from seatrial_api.kubernetes_object import API_GROUP, API_VERSION
from seatrial_api.rlrun import RLRun
from seatrial_api.rules import stored_form
from seatrial_api.warm_sandboxes import sandbox_pools
from seatrial_operator.manifests.names import Manifest, owned_by_run, run_labels


def rollout_pool(run: RLRun, uid: str, *, keeps_sandboxes: bool = True) -> Manifest:
    """The pool that a run owns, of the run's name: its engines, and the sandboxes that it keeps warm.

    Args:
        run: The run.
        uid: Its `metadata.uid`.
        keeps_sandboxes: Whether trials are to come; a run that rests keeps none.
    """
    pools = sandbox_pools(run.spec) if keeps_sandboxes else []
    template = run.spec.rollout.model_copy(update={"sandboxes": pools})
    return {
        "apiVersion": f"{API_GROUP}/{API_VERSION}",
        "kind": "RolloutPool",
        "metadata": owned_by_run(run, uid, run.metadata.name, run_labels(run)),
        "spec": {"run": run.metadata.name, **stored_form(template)},
    }
