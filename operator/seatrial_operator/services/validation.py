"""What keeps a run from being run: broken rules, fields that cannot be honoured, objects that are not there."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from seatrial_api.asked_harnesses import asked_harnesses
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.rules import violations
from seatrial_api.spec.harness import PROGRAM_HARNESSES
from seatrial_api.spec.judge import JudgeKey
from seatrial_api.spec.model import PvcSource, S3Source
from seatrial_api.spec.operations import StorageSpec, Wandb
from seatrial_api.spec.rollout import SandboxPoolSpec, SandboxSpec
from seatrial_api.walk import objects
from seatrial_operator.config import OperatorConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import RefusedError
from seatrial_operator.kube.resources import CLAIMS, SECRETS, WORLD_IMAGES, Resource
from seatrial_operator.manifests.checks import problems
from seatrial_operator.manifests.storage import storage_of
from seatrial_operator.plan.observed import RunObject


@dataclass
class Validation:
    """Checks each generation of a spec once.

    Admission has checked the rules before; they are checked again because the definitions in the cluster may be older
    than the operator.
    """

    config: OperatorConfig
    _known: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def problems(self, run: RunObject) -> tuple[str, ...]:
        """What has to be changed in the spec: the field, and the way out."""
        generation, problems = self._known.get(run.uid, (-1, ()))
        if generation != run.generation:
            problems = self._check(run)
            self._known[run.uid] = (run.generation, problems)
        return problems

    def forget(self, uid: str) -> None:
        """The run of this uid is gone."""
        self._known.pop(uid, None)

    def _check(self, run: RunObject) -> tuple[str, ...]:
        broken = [f"{found.path.lstrip('.')}: {found.message}" for found in violations(run.run)]
        if broken:
            return tuple(broken)
        return tuple(map(str, problems(run.run, self.config)))


async def missing_references(client: KubeClient, run: RunObject, config: OperatorConfig) -> tuple[str, ...]:
    """Claims, Secrets and worlds that the spec names and that are not there, and agents that a world lacks.

    An object that we have no right to look at is taken to be there: its pods will tell.
    """
    missing: list[str] = []
    for path, resource, name in sorted(_references(run.spec, storage_of(run.spec, config)), key=lambda ref: ref[0]):
        try:
            found = await client.find(resource, run.namespace, name)
        except RefusedError:
            continue
        if found is None:
            missing.append(f"{path}: there is no {resource.kind} {run.namespace}/{name}; create it, or name another")
        elif resource is WORLD_IMAGES and not found["spec"].get("harnesses"):
            missing += _without_programs(run.spec, f"{run.namespace}/{name}")
    return tuple(dict.fromkeys(missing))


def _without_programs(spec: RLRunSpec, world: str) -> Iterator[str]:
    """What is to be said of a world that brings no agents to a run that asks for some."""
    for path, name in asked_harnesses(spec):
        if name in PROGRAM_HARNESSES:
            yield f"{path}: WorldImage {world} does not bring {name}; set its spec.harnesses, or choose another harness"


def _references(spec: RLRunSpec, storage: StorageSpec) -> set[tuple[str, Resource, str]]:
    found: set[tuple[str, Resource, str]] = set()
    for path, item, _ in (*objects(spec, path="spec"), *objects(storage, path="spec.storage")):
        match item:
            case PvcSource(claim=claim):
                found.add((f"{path}.claim", CLAIMS, claim))
            case S3Source(secret=str(name)) | Wandb(secret=str(name)) | JudgeKey(secret=str(name)):
                found.add((f"{path}.secret", SECRETS, name))
            case SandboxSpec(world=str(name)) | SandboxPoolSpec(world=name):
                found.add((f"{path}.world", WORLD_IMAGES, name))
            case _:
                pass
    return found
