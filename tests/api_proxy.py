"""A proxy before the API server that sees every write, and may end its client at any of them."""

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from tests.threaded_server import threaded_server

_HOP_HEADERS = {"host", "connection", "transfer-encoding", "content-length", "content-encoding"}


@dataclass
class ApiProxy:
    """Serves plain HTTP, and asks the API server as the administrator."""

    kubeconfig: Path
    """Of the proxy itself, for its client."""
    writes: list[str] = field(default_factory=list)
    """Every write that reached the API server, as `PATCH /apis/…`, leases and events aside."""
    is_cut: bool = False
    """Whether nothing gets through any more."""
    after: Callable[[str], bool] = lambda _: False
    """Called with each write that changed something; if true, the client gets no answer."""
    _versions: set[str] = field(default_factory=set)

    def is_change(self, content: bytes) -> bool:
        """Whether an object has a version that no earlier write answered with; applying the same again makes none."""
        version = json.loads(content)["metadata"].get("resourceVersion", content.decode())
        is_new = version not in self._versions
        self._versions.add(version)
        return is_new


def _is_step(method: str, path: str) -> bool:
    return method in {"POST", "PUT", "PATCH", "DELETE"} and "/leases" not in path and "/events" not in path


@contextmanager
def api_proxy(upstream: Path, folder: Path) -> Iterator[ApiProxy]:
    """A proxy before the API server of the kubeconfig `upstream`, in a thread of its own."""
    server, context = _credentials(upstream)
    proxy = ApiProxy(folder / "proxied.kubeconfig")

    @asynccontextmanager
    async def app() -> AsyncIterator[web.Application]:
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

            async def forward(request: web.Request) -> web.StreamResponse:
                return await _forward(proxy, session, server, request)

            made = web.Application(client_max_size=2**24)
            made.router.add_route("*", "/{path:.*}", forward)
            yield made

    with threaded_server(app) as url:
        proxy.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(url)))
        yield proxy


async def _forward(
    proxy: ApiProxy, session: aiohttp.ClientSession, server: str, request: web.Request
) -> web.StreamResponse:
    step = f"{request.method} {request.path}"
    is_step = _is_step(request.method, request.path)
    if proxy.is_cut:
        raise web.HTTPServiceUnavailable
    headers = {key: text for key, text in request.headers.items() if key.lower() not in _HOP_HEADERS}
    headers["Accept-Encoding"] = "identity"
    body = await request.read() or None
    async with session.request(
        request.method,
        server + request.raw_path,
        headers=headers,
        data=body,
        timeout=aiohttp.ClientTimeout(),
        skip_auto_headers=["Content-Type", "Accept", "User-Agent"],
    ) as answer:
        kept = {key: text for key, text in answer.headers.items() if key.lower() not in _HOP_HEADERS}
        if is_step:
            content = await answer.read()
            if answer.status < 300 and proxy.is_change(content):
                proxy.writes.append(step)
                if await asyncio.to_thread(proxy.after, step):
                    raise web.HTTPServiceUnavailable
            return web.Response(status=answer.status, headers=kept, body=content)
        response = web.StreamResponse(status=answer.status, headers=kept)
        try:
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        except (ConnectionError, aiohttp.ClientError):
            pass  # the client was killed
        return response


def _credentials(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    content = yaml.safe_load(kubeconfig.read_text())
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    context = ssl.create_default_context(cadata=_data(cluster, "certificate-authority", kubeconfig).decode())
    with tempfile.TemporaryDirectory() as place:
        for name in ("client-certificate", "client-key"):
            (Path(place) / name).write_bytes(_data(user, name, kubeconfig))
        context.load_cert_chain(Path(place) / "client-certificate", Path(place) / "client-key")
    return cluster["server"], context


def _data(entry: dict[str, str], name: str, kubeconfig: Path) -> bytes:
    if f"{name}-data" in entry:
        return base64.b64decode(entry[f"{name}-data"])
    return (kubeconfig.parent / entry[name]).read_bytes()


def _kubeconfig(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxied",
        "clusters": [{"name": "proxied", "cluster": {"server": server}}],
        "users": [{"name": "proxied", "user": {}}],
        "contexts": [{"name": "proxied", "context": {"cluster": "proxied", "user": "proxied"}}],
    }
