"""What the operator shows to an API server, seen from a server that asks for certificates and for tokens."""

import base64
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from hack.cluster.pki import ADMIN, Authority
from seatrial_api.errors import InvalidInputError
from seatrial_operator.kube.client import connect
from seatrial_operator.kube.credentials import of_service_account
from seatrial_operator.kube.errors import UnavailableError
from seatrial_operator.kube.resources import SECRETS


@dataclass(frozen=True)
class Server:
    """An API server that answers any request with who sent it."""

    url: str
    pki: Path

    def encoded(self, name: str) -> str:
        """A file of its authority, as a kubeconfig holds it."""
        return base64.b64encode((self.pki / name).read_bytes()).decode()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with a certificate for a server and one for the administrator."""
    folder = tmp_path_factory.mktemp("pki")
    authority = Authority(folder)
    authority.issue_server("server", ["127.0.0.1"])
    authority.issue_client(ADMIN)
    return folder


@asynccontextmanager
async def serving(pki: Path) -> AsyncIterator[Server]:
    """The server, while the block lasts."""

    async def tell(request: web.Request) -> web.Response:
        certificate = request.get_extra_info("peercert") or {}
        names = dict(part for parts in certificate.get("subject", ()) for part in parts)
        told = {"user": names.get("commonName", ""), "token": request.headers.get("Authorization", "")}
        return web.json_response(told)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pki / "ca.crt")
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    app = web.Application()
    app.router.add_get("/{path:.*}", tell)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield Server(f"https://127.0.0.1:{runner.addresses[0][1]}", pki)
    finally:
        await runner.cleanup()


def kubeconfig(path: Path, cluster: dict[str, Any], user: dict[str, Any], **changes: Any) -> Path:
    """A kubeconfig with one context."""
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(content | changes))
    return path


async def who_am_i() -> dict[str, Any]:
    """What the server that `connect` finds says of its client."""
    async with connect() as client:
        return await client.get(SECRETS, "team", "any")


async def test_certificates_within_a_kubeconfig_are_shown(
    pki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(pki) as server:
        cluster = {"server": server.url + "/", "certificate-authority-data": server.encoded("ca.crt")}
        user = {"client-certificate-data": server.encoded("admin.crt"), "client-key-data": server.encoded("admin.key")}
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", cluster, user)))
        assert await who_am_i() == {"user": "admin", "token": ""}


async def test_paths_in_a_kubeconfig_are_seen_from_its_folder(pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(pki) as server:
        cluster = {"server": server.url, "certificate-authority": "ca.crt"}
        user = {"client-certificate": "admin.crt", "client-key": "admin.key"}
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(pki / "config", cluster, user)))
        assert (await who_am_i())["user"] == "admin"


async def test_of_two_kubeconfigs_the_first_that_has_an_entry_wins(
    pki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(pki) as server:
        cluster = {"server": server.url, "certificate-authority-data": server.encoded("ca.crt")}
        first = tmp_path / "first"
        first.write_text(yaml.safe_dump({"users": [{"name": "u", "user": {"token": "mine"}}]}))
        second = kubeconfig(tmp_path / "second", cluster, {"token": "other"})
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(first), str(second)]))
        assert await who_am_i() == {"user": "", "token": "Bearer mine"}


async def test_a_token_that_is_renewed_is_used_from_then_on(
    pki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(pki) as server:
        cluster = {"server": server.url, "certificate-authority-data": server.encoded("ca.crt")}
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", cluster, {"tokenFile": "token"})))
        (tmp_path / "token").write_text("old\n")
        async with connect() as client:
            before = await client.get(SECRETS, "team", "any")
            (tmp_path / "token").write_text("new\n")
            after = await client.get(SECRETS, "team", "any")
    assert (before["token"], after["token"]) == ("Bearer old", "Bearer new")


async def test_a_server_of_another_authority_is_not_talked_to(
    pki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Authority(tmp_path)
    async with serving(pki) as server:
        cluster = {"server": server.url, "certificate-authority": "ca.crt"}
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", cluster, {"token": "secret"})))
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            await who_am_i()


@pytest.mark.parametrize(
    ("host", "server"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_uses_what_the_kubelet_brought_into_it(pki: Path, tmp_path: Path, host: str, server: str) -> None:
    (tmp_path / "ca.crt").write_bytes((pki / "ca.crt").read_bytes())
    (tmp_path / "token").write_text("first")
    found = of_service_account(tmp_path, {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"})
    assert found.server == server
    assert found.headers() == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("second")
    assert found.headers() == {"Authorization": "Bearer second"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"current-context": None}, "there is no context ''"),
        ({"current-context": "gone"}, "there is no context 'gone'"),
        ({"users": []}, "there is no user 'u'"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "'server'"),
        ({"clusters": None}, "there is no cluster 'c'"),
        ({"contexts": "text"}, "run in a pod, or set KUBECONFIG"),
        ({"users": [{"name": "u", "user": {"client-key-data": "%", "client-certificate-data": "%"}}]}, "is not base64"),
        ({"users": [{"name": "u", "user": {"tokenFile": "gone"}}]}, "No such file"),
        ({"users": [{"name": "u", "user": {"client-key": "no", "client-certificate": "no"}}]}, "No such file"),
        ({"users": [{"name": "u", "user": {"exec": {"command": "aws"}}}]}, "`exec`, which this process does not run"),
        ({"users": [{"name": "u", "user": {"auth-provider": {}}}]}, "`auth-provider`, which this process"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    path = kubeconfig(tmp_path / "config", {"server": "http://127.0.0.1:1"}, {}, **changes)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(InvalidInputError, match=words):
        await who_am_i()


async def test_no_kubeconfig_at_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidInputError, match=r"config.*run in a pod, or set KUBECONFIG"):
        await who_am_i()
