"""Whatever a podTemplate holds, the operator answers; it does not break."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from seatrial_api.rlrun import RLRun
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.checks import problems
from seatrial_operator.manifests.rehearsal import rehearsal
from tests.manifests import run_manifest

KEYS = st.sampled_from(
    [
        *("name", "labels", "annotations", "containers", "initContainers", "env", "ports", "volumes", "volumeMounts"),
        *("mountPath", "containerPort", "value", "emptyDir", "securityContext", "schedulerName", "restartPolicy"),
        *("$patch", "$retainKeys", "$deleteFromPrimitiveList/x", "ray.io/x", "a"),
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 9000),
    st.sampled_from(["", "ray", "x", "delete", "replace", "seatrial-x", "/seatrial/x", "/dev/shm", "SEATRIAL_X"]),
)
VALUES = st.recursive(
    LEAVES,
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(KEYS, below, max_size=4)),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
RAY = st.builds(lambda some: {**some, "name": "ray"}, OBJECTS)
SPECS = st.one_of(
    OBJECTS, st.builds(lambda some, ray, more: {**some, "containers": [ray, *more]}, OBJECTS, RAY, st.lists(OBJECTS))
)
TEMPLATES = st.one_of(
    OBJECTS, st.fixed_dictionaries({}, optional={"metadata": OBJECTS, "spec": SPECS, "$patch": st.just("replace")})
)
CONFIG = OperatorConfig.model_validate({"storage": {"pvc": {"claim": "c"}}})


def run_with(template: Any) -> RLRun | None:
    """The run, if its rules let it through."""
    changes = {"spec__sandbox": {"provider": "local"}, "spec__topology": {"agents": {"podTemplate": template}}}
    try:
        return RLRun.model_validate(run_manifest(**changes))
    except ValidationError:
        return None


@settings(max_examples=300)
@given(TEMPLATES)
def test_a_template_is_refused_or_made_into_pods(template: Any) -> None:
    run = run_with(template)
    if run is not None and problems(run, CONFIG) == []:
        containers = rehearsal(run, "uid-12345", CONFIG).popitem()[1]["template"]["spec"]["containers"]
        assert containers[0]["name"] == "ray"
        assert containers[0]["image"] == CONFIG.images.ray_cpu
