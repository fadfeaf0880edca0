"""Having Kubernetes judge the pods that a user shaped, before anything is made of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import ForbiddenError, RefusedError
from seatrial_operator.kube.resources import POD_TEMPLATES, Object, Resource
from seatrial_operator.manifests.rehearsal import blame_pod_template


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What is judged, none of which is made."""

    templates: Sequence[tuple[str, Object]]
    """PodTemplates, each with the field that holds the user's part of it."""
    kind: Resource
    """Kind of the object that the pods are made by."""
    whole: Callable[[], Object]
    """That object: where a field is of a wrong type its schema names the field, as a PodTemplate's does not."""
    blame: Callable[[str], str]
    """The API server's words about it, with the user's own fields in them."""


async def rehearse(client: KubeClient, namespace: str, rehearsal: Rehearsal) -> None:
    """Have the API server judge pods; without the right to that they will tell themselves.

    Raises:
        RefusedError: naming the user's field.
        KubeError: as the tree says.
    """
    for path, template in rehearsal.templates:
        try:
            await client.create(POD_TEMPLATES, namespace, template, dry_run=True)
        except ForbiddenError:
            return
        except RefusedError as exc:
            await _rehearse_whole(client, namespace, rehearsal)
            raise RefusedError(request=exc.request, detail=blame_pod_template(exc.detail, path)) from exc


async def _rehearse_whole(client: KubeClient, namespace: str, rehearsal: Rehearsal) -> None:
    try:
        await client.create(rehearsal.kind, namespace, rehearsal.whole(), dry_run=True)
    except RefusedError as exc:
        raise RefusedError(request=exc.request, detail=rehearsal.blame(exc.detail)) from exc
