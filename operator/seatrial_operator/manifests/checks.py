"""Why a run would not start in this cluster, each reason with its field and the way out; before anything is made."""

from collections.abc import Callable, Iterator
from typing import Any

from seatrial_api.playbook import Segment, segments_of
from seatrial_api.pods import Role
from seatrial_api.refusals import Refusal, refusals
from seatrial_api.rlrun import RLRun
from seatrial_api.sandboxes import BROKER_TOKEN_FILE
from seatrial_api.spec.operations import StorageSpec
from seatrial_api.spec.pod_template import RAY_CONTAINER
from seatrial_operator.config import OperatorConfig
from seatrial_operator.manifests.names import Manifest
from seatrial_operator.manifests.pod_template import PodTemplateError
from seatrial_operator.manifests.pods import PodPlan, base_template, pod_template
from seatrial_operator.manifests.rayjob import role_plans
from seatrial_operator.manifests.storage import OWN_PREFIX

_RESERVED_VARIABLES = ("SEATRIAL_", "RAY_AUTH_", "RAY_ADDRESS", "RAY_REDIS_ADDRESS")
_RESERVED_MOUNTS = ("/seatrial/", f"{BROKER_TOKEN_FILE.parent}/")
_RESERVED_ANNOTATIONS = ("ray.io/", "seatrial.dev/")
_NO_BROKER = (
    "the operator was not told where the broker of sandboxes answers; set the chart's config.sandboxes.address, or "
    "choose local or harbor:<environment>"
)
_OWNED_FIELDS = ("image", "command", "args", "resources")


def problems(run: RLRun, config: OperatorConfig) -> list[Refusal]:
    """Everything for which the operator would not start `run`; empty if it would."""
    found = refusals(run.spec, "operator", default_storage=config.storage or StorageSpec())
    if run.spec.sandbox.provider == "kubernetes" and config.sandboxes.address is None:
        found.append(Refusal("spec.sandbox.provider", _NO_BROKER))
    return [*found, *template_problems(run, config)]


def template_problems(run: RLRun, config: OperatorConfig) -> Iterator[Refusal]:
    """What is wrong with a run's podTemplates as far as we can tell; Kubernetes judges the rest, see `rehearsal`."""
    for plan in role_plans(run, whole_run(run), 0, config):
        yield from pod_problems(plan, config, template_path(plan.role))


def pod_problems(plan: PodPlan, config: OperatorConfig, path: str) -> Iterator[Refusal]:
    """What is wrong with one podTemplate.

    Args:
        plan: The pods.
        config: The operator's settings.
        path: The field that holds the podTemplate.
    """
    try:
        merged = pod_template(plan, config)
    except PodTemplateError as error:
        yield Refusal(f"{path}.{error.path}", error.problem)
        return
    for below, message in _overridden(base_template(plan, config), merged):
        yield Refusal(f"{path}.{below}", message)


def whole_run(run: RLRun) -> Segment:
    """A segment with every role that a run's stages need at some time."""
    return segments_of(run.spec.stages, "Run")[0]


def template_path(role: Role) -> str:
    """The field with a role's podTemplate."""
    return f"spec.topology.{role.value}.podTemplate"


type _Finding = tuple[str, str]
"""A field of a podTemplate, what is wrong with it and the way out."""


def _overridden(base: Manifest, merged: Manifest) -> Iterator[_Finding]:
    """Fields of the merged template that differ from ours where they must not."""
    yield from _metadata(base["metadata"], merged.get("metadata", {}))
    spec = merged["spec"]
    if spec.get("restartPolicy") != base["spec"]["restartPolicy"]:
        yield "spec", "restartPolicy must stay Never; remove what deletes it"
    yield from _changed(
        "spec.volumes", base["spec"]["volumes"], spec, lambda volume: volume["name"].startswith(OWN_PREFIX)
    )
    yield from _container(base["spec"]["containers"][0], spec["containers"][0])


def _metadata(ours: Manifest, theirs: Manifest) -> Iterator[_Finding]:
    for key in sorted(theirs.keys() - {"labels", "annotations"}):
        yield f"metadata.{key}", "pods are named by KubeRay; set labels and annotations only, and remove it"
    annotations = theirs.get("annotations")
    for key in annotations if isinstance(annotations, dict) else {}:
        if key.startswith(_RESERVED_ANNOTATIONS):
            yield f"metadata.annotations.{key}", "annotations of ray.io and seatrial.dev steer the pod; remove it"
    if not ours["labels"].items() <= (theirs.get("labels") or {}).items():
        yield "metadata.labels", "labels by which pods are found must stay; remove what deletes them"


def _container(ours: Manifest, theirs: Manifest) -> Iterator[_Finding]:
    path = f"spec.containers[{RAY_CONTAINER}]"
    for key in _OWNED_FIELDS:
        if ours.get(key) != theirs.get(key):
            yield path, f"{key} of this container is Seatrial's; use the role's own fields, and remove what changes it"
    ports = {port["containerPort"] for port in ours["ports"]} | {port["name"] for port in ours["ports"]}
    rules: dict[str, Callable[[Manifest], bool]] = {
        "ports": lambda port: not ports.isdisjoint((port["containerPort"], port.get("name"))),
        "env": lambda variable: variable["name"].startswith(_RESERVED_VARIABLES),
        "volumeMounts": lambda mount: f"{mount['mountPath']}/".startswith(_RESERVED_MOUNTS),
    }
    for key, is_ours in rules.items():
        yield from _changed(f"{path}.{key}", ours[key], theirs, is_ours)


def _changed(
    path: str, ours: list[Manifest], holder: Manifest, is_ours: Callable[[Manifest], bool]
) -> Iterator[_Finding]:
    """Whether a list holds the items that are ours, as they were and no others."""
    items: Any = holder.get(path.rpartition(".")[2])
    try:
        kept = sorted(map(str, filter(is_ours, items)))
    except (AttributeError, KeyError, TypeError):
        yield path, "it must be a list of objects with their names; correct it"
        return
    if kept != sorted(map(str, filter(is_ours, ours))):
        yield path, "this adds, changes or deletes what Seatrial sets there; rename it, or remove it"
