"""kopf as a watcher: events become keys in the queue, and nothing else.

No handler of ours changes an object, so kopf writes neither annotations nor finalizers; the order of events does not
matter, since a key says only that something is worth a look.
"""

from collections.abc import Callable, Sequence
from typing import Any

import kopf

from seatrial_operator.kube.credentials import is_in_cluster
from seatrial_operator.kube.resources import ObjectKey, Watch

_PAGE = 500
_IDLE_SECONDS = 1.0
"""A kopf worker that has had nothing to do for so long ends: one idles for each object that had an event."""


async def watch(
    watches: Sequence[Watch],
    enqueue: Callable[[ObjectKey], None],
    namespaces: Sequence[str],
) -> None:
    """Watch until a signal asks the process to end.

    Args:
        watches: What to hear of.
        enqueue: Takes each key that an event concerns.
        namespaces: Where; in all namespaces if empty.
    """
    registry = kopf.OperatorRegistry()
    login = kopf.login_with_service_account if is_in_cluster() else kopf.login_with_kubeconfig
    kopf.on.login(registry=registry, retries=3)(login)
    for one in watches:
        _register(registry, one, enqueue)
    await kopf.operator(
        registry=registry,
        settings=_settings(watches),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
    )


def _register(registry: kopf.OperatorRegistry, one: Watch, enqueue: Callable[[ObjectKey], None]) -> None:
    resource = one.resource

    async def notice(event: kopf.RawEvent, **_: Any) -> None:
        for key in one.notice(dict(event["object"]), event["type"] == "DELETED"):
            enqueue(key)

    kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=resource.plural)(notice)


def _settings(watches: Sequence[Watch]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = _PAGE
    settings.queueing.idle_timeout = _IDLE_SECONDS
    for one in watches:
        if one.labels:
            settings.watching.label_selectors[one.resource.group, one.resource.version, one.resource.plural] = (
                one.labels
            )
    return settings
