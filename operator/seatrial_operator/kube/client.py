"""Requests to the API server, each with a bound in time, objects as plain JSON, errors of ours.

There is no client library below: the operator knows its few kinds, and a process that holds hundreds of runs stays
small; docs/decisions has the page.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from seatrial_operator.kube.credentials import Credentials, find_credentials
from seatrial_operator.kube.errors import NotFoundError, UnavailableError, translate
from seatrial_operator.kube.resources import PODS, Object, Resource
from seatrial_operator.metrics.process import KUBE_REQUESTS

FIELD_MANAGER = "seatrial-operator"
REQUEST_SECONDS = 15.0
"""Time in which the API server has to answer."""
_PAGE = 100
"""Objects in one answer to a list: it is held whole while it is read."""
_CONNECTIONS = 64
_IDLE_SECONDS = 60.0
"""Time for which an idle connection is kept, sparing the next request a handshake; API servers keep it for 90 s."""
_QUIET_SECONDS = 150.0
"""Silence after which a watch is taken for dead; the API server sends a bookmark about every minute."""
_EVENT_BYTES = 2**21
"""Largest event of a watch, with room: etcd holds objects of up to 1.5 MiB."""
_JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class KubeClient:
    """A connection to one API server."""

    def __init__(self, session: aiohttp.ClientSession, credentials: Credentials, field_manager: str) -> None:
        self._session = session
        self._credentials = credentials
        self._field_manager = field_manager

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """One object, as it is now.

        Raises:
            NotFoundError: if it is not there.
            KubeError: as the tree says.
        """
        return await self._request("GET", resource.path(namespace, name), "get", resource)

    async def find(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """One object, as it is now; none if it is not there."""
        try:
            return await self.get(resource, namespace, name)
        except NotFoundError:
            return None

    async def list(
        self, resource: Resource, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """All objects with these labels, of one namespace or of all, page by page."""
        selector = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        found, _ = await self.list_at(resource, namespace, selector)
        return [*found]

    async def list_at(
        self, resource: Resource, namespace: str | None, selector: str = ""
    ) -> tuple[Sequence[Object], str]:
        """All objects that a label selector takes, as of one version, and that version, from which `watch` goes on."""
        found: list[Object] = []
        version = ""
        async for page in self._pages(resource, namespace, selector):
            found += page["items"]
            version = page["metadata"]["resourceVersion"]
        return found, version

    async def each_in(self, resource: Resource, namespaces: Sequence[str]) -> AsyncIterator[Object]:
        """All objects of these namespaces, of the whole cluster if there are none; no more than a page is held."""
        wanted: Sequence[str | None] = namespaces or (None,)
        for namespace in wanted:
            async for page in self._pages(resource, namespace):
                for item in page["items"]:
                    yield item

    async def watch(
        self, resource: Resource, namespace: str | None, version: str, selector: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """What happens to objects after a version: `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`, and the object.

        Ends when the API server ends it, which is normal; it goes on from the version of the last object.

        Raises:
            ExpiredError: if the API server no longer knows what happened since; list anew.
            KubeError: as the tree says.
        """
        path = resource.path(namespace)
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
        if selector:
            query["labelSelector"] = selector
        told = f"watch {path}"
        within = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=_QUIET_SECONDS)
        try:
            async with self._send("GET", path, query, None, {"Accept": _JSON}, within) as answer:
                if answer.status >= 400:
                    raise translate(told, answer.status, await answer.read())
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise translate(told, event["object"].get("code", 500), json.dumps(event["object"]))
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            raise UnavailableError(request=told, detail=f"{type(exc).__name__}: {exc}") from exc

    async def create(
        self,
        resource: Resource,
        namespace: str | None,
        manifest: Object,
        *,
        dry_run: bool = False,
        metadata_only: bool = False,
    ) -> Object:
        """Make an object. A field that its kind does not know is refused instead of being left out.

        Args:
            resource: Its kind.
            namespace: Its namespace.
            manifest: The object.
            dry_run: Have it judged only.
            metadata_only: Answer with its metadata alone.

        Raises:
            AlreadyExistsError: if one of this name is there.
            KubeError: as the tree says.
        """
        dry = {"dryRun": "All"} if dry_run else {}
        query = {"fieldManager": self._field_manager, "fieldValidation": "Strict", **dry}
        accept = _METADATA if metadata_only else _JSON
        path = resource.path(namespace)
        return await self._request("POST", path, "create", resource, query=query, body=manifest, accept=accept)

    async def patch_metadata(self, resource: Resource, namespace: str | None, name: str, metadata: Object) -> Object:
        """Change labels and annotations; the answer is the object's metadata alone.

        Raises:
            StaleError: if `metadata` holds a uid or a resourceVersion and the object has another.
            KubeError: as the tree says.
        """
        return await self._request(
            "PATCH",
            resource.path(namespace, name),
            "patch",
            resource,
            query={"fieldManager": self._field_manager},
            body={"metadata": metadata},
            content_type="application/merge-patch+json",
            accept=_METADATA,
        )

    async def apply(self, resource: Resource, namespace: str | None, manifest: Object) -> Object:
        """Server-side apply: make the object, or bring our fields of it to what `manifest` says.

        Raises:
            StaleError: if `manifest` holds a uid or a resourceVersion and the object has another.
            KubeError: as the tree says.
        """
        return await self._apply(resource, namespace, manifest, None)

    async def apply_status(self, resource: Resource, namespace: str | None, manifest: Object) -> Object:
        """Server-side apply of the status; as `apply`."""
        return await self._apply(resource, namespace, manifest, "status")

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str | None = None, foreground: bool = False
    ) -> None:
        """Delete an object; one that is not there is as good as deleted.

        Args:
            resource: Its kind.
            namespace: Its namespace.
            name: Its name.
            uid: Delete only the very object that has this uid.
            foreground: Let the object stay until all that it owns is gone.
        """
        body: Object = {"propagationPolicy": "Foreground" if foreground else "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._request("DELETE", resource.path(namespace, name), "delete", resource, body=body)
        except NotFoundError:
            return

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server knows a kind."""
        group = f"/apis/{resource.group}" if resource.group else "/api"
        try:
            known = await self._request("GET", f"{group}/{resource.version}", "discover", resource)
        except NotFoundError:
            return False
        return any(item["name"] == resource.plural for item in known["resources"])

    async def server_version(self) -> tuple[int, int]:
        """Major and minor version of Kubernetes."""
        told = await self._request("GET", "/version", "discover", PODS)
        return int(told["major"]), int(told["minor"].rstrip("+"))

    async def _pages(self, resource: Resource, namespace: str | None, selector: str = "") -> AsyncIterator[Object]:
        query = {"limit": str(_PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._request("GET", resource.path(namespace), "list", resource, query=query)
            yield page
            query["continue"] = page["metadata"].get("continue") or ""
            if not query["continue"]:
                return

    async def _apply(
        self, resource: Resource, namespace: str | None, manifest: Object, subresource: str | None
    ) -> Object:
        path = resource.path(namespace, manifest["metadata"]["name"], subresource)
        query = {"fieldManager": self._field_manager, "force": "true"}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **manifest}
        return await self._request(
            "PATCH", path, "apply", resource, query=query, body=body, content_type="application/apply-patch+yaml"
        )

    async def _request(  # noqa: PLR0913  the parts of an HTTP request
        self,
        method: str,
        path: str,
        verb: str,
        resource: Resource,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Object:
        told = f"{verb} {path.partition('/namespaces/')[2] or path}"
        headers = {"Accept": accept, "Content-Type": content_type}
        within = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        try:
            async with self._send(method, path, query, body, headers, within) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise UnavailableError(request=told, detail=f"{type(exc).__name__}: {exc}") from exc
        finally:
            KUBE_REQUESTS.labels(verb=verb, resource=resource.plural).inc()
        if answer.status >= 400:
            raise translate(told, answer.status, content)
        parsed: Any = json.loads(content)
        return dict(parsed)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | None,
        headers: Mapping[str, str],
        within: aiohttp.ClientTimeout,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        url = f"{self._credentials.server}{path}"
        return self._session.request(
            method,
            URL(f"{url}?{urlencode(query)}" if query else url, encoded=True),
            data=None if body is None else json.dumps(body),
            headers={**headers, **self._credentials.headers()},
            timeout=within,
        )


@asynccontextmanager
async def connect(field_manager: str = FIELD_MANAGER) -> AsyncIterator[KubeClient]:
    """A client with the rights of the pod's service account, else of `KUBECONFIG` or `~/.kube/config`.

    Raises:
        InvalidInputError: if there are no credentials.
    """
    credentials = find_credentials()
    connector = aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=credentials.tls, keepalive_timeout=_IDLE_SECONDS)
    async with aiohttp.ClientSession(
        connector=connector, proxy=credentials.proxy, read_bufsize=_EVENT_BYTES
    ) as session:
        yield KubeClient(session, credentials, field_manager)
