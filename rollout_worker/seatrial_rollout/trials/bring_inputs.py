"""`python -m seatrial_rollout.trials.bring_inputs`: what a pod does before Ray starts, where pods share no volume.

Model and task sets come to the paths at which the driver, in its own pod, finds them. It runs in a container of its own
before the others, so that a pod that takes a lost one's place brings them as well.
"""

import os
import sys

import structlog

from seatrial_api.driver_request import PodInputs
from seatrial_api.errors import InvalidInputError, TransientError
from seatrial_api.pods import INPUTS_VARIABLE
from seatrial_rollout.engine.model_files import find_model
from seatrial_rollout.trials.tasks import load_task_set

log = structlog.get_logger(__name__)


def main() -> int:
    """Entry point; a failure is one sentence, and Kubernetes tries again or not."""
    inputs = PodInputs.model_validate_json(os.environ[INPUTS_VARIABLE])
    try:
        model = find_model(inputs.model, inputs.base_dir)
        tasks = [load_task_set(task_set, inputs.base_dir, inputs.base_dir / ".cache") for task_set in inputs.tasks]
    except (InvalidInputError, TransientError) as error:
        log.error("the pod's inputs cannot be brought", error=str(error))  # noqa: TRY400  the sentence suffices
        return 1
    log.info("the pod's inputs are here", model=str(model), tasks=sum(map(len, tasks)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
