"""Which harnesses a run asks for, and in which of its fields."""

from collections.abc import Iterator
from contextlib import suppress

from seatrial_api.ablation import patched_spec
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRunSpec


def asked_harnesses(spec: RLRunSpec) -> Iterator[tuple[str, str]]:
    """Field and name of each harness: the run's own, those of single stages, and those of ablations' arms.

    A patch that cannot be applied is passed over; it is refused elsewhere.
    """
    yield "spec.harness.name", spec.harness.name
    for index, stage in enumerate(spec.stages):
        path = f"spec.stages[{index}]"
        for name in stage.evaluate.harnesses if stage.evaluate is not None else []:
            yield f"{path}.evaluate.harnesses", name
        for number, arm in enumerate(stage.ablate.arms if stage.ablate is not None else []):
            with suppress(InvalidInputError):
                name = patched_spec(spec, arm).harness.name
                if name != spec.harness.name:
                    yield f"{path}.ablate.arms[{number}].patch", name
