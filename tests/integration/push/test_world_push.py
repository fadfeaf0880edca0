"""Worlds into a real registry: behind a token service, behind a password, and over a connection that breaks."""

import hashlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from rich.console import Console

from seatrial.oci_archive import OciArchive
from seatrial.push.command import PushOrder, push
from seatrial.push.image import push_archive
from seatrial.push.session import RegistrySession
from seatrial.push.upload import Uploader
from seatrial.world_build import Order, build_image
from seatrial_api.errors import InvalidInputError
from seatrial_operator.registry.client import RegistryClient
from seatrial_operator.registry.credentials import Credentials
from seatrial_operator.registry.reference import Reference
from tests.aws import ECR_HOST, aws
from tests.clocks import HeldClock
from tests.registries import PASSWORD, USERNAME, Registry, TokenService, password_auth, registry
from tests.web_servers import web_server

READER = Credentials(USERNAME, PASSWORD)
QUIET = Console(quiet=True)


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, str]:
    """An archive of some hundred kilobytes that do not shrink, and its digest."""
    (tmp_path / "files").mkdir()
    noise = b"".join(hashlib.sha256(bytes([number % 256, number // 256])).digest() for number in range(8192))
    (tmp_path / "files/noise.bin").write_bytes(noise)
    out = tmp_path / "world.tar"
    return out, build_image(Order(tmp_path / "files", "/workspace", "localhost/acme:v3", "amd64"), out)


def log_in_by_helper(folder: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Docker configuration whose helper knows the password."""
    (folder / "config.json").write_text(json.dumps({"auths": {host: {}}, "credHelpers": {host: "of-test"}}))
    helper = folder / "docker-credential-of-test"
    answer = json.dumps({"ServerURL": host, "Username": USERNAME, "Secret": PASSWORD})
    helper.write_text(f"#!/bin/sh\ngrep -q '{host}' || exit 1\necho '{answer}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


async def test_a_world_is_pushed_as_it_was_built_and_then_nothing_of_it_again(
    world: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, digest = world
    tokens = TokenService(tmp_path)
    await tokens.start()
    try:
        async with registry(tmp_path, tokens.auth) as running, aiohttp.ClientSession() as http:
            log_in_by_helper(tmp_path, running.host, monkeypatch)
            order = PushOrder(archive, f"{running.host}/worlds/acme")
            reference, pushed = await push(order, QUIET)
            assert str(reference) == f"{running.host}/worlds/acme:v3", "the archive's own tag"
            assert (pushed.digest, len(pushed.sent), pushed.there) == (digest, 3, [])
            assert await RegistryClient(http).digest(reference, READER) == digest

            _, again = await push(order, QUIET)
            assert (again.digest, again.sent, len(again.there)) == (digest, [], 3)

            with pytest.raises(InvalidInputError, match="check name and password, and whether they may push"):
                await push(PushOrder(archive, order.target, Credentials(USERNAME, "wrong")), QUIET)
    finally:
        await tokens.stop()


async def test_a_registry_behind_a_password_refuses_who_has_none(
    world: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, digest = world
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nothing"))
    async with registry(tmp_path, password_auth(tmp_path)) as running:
        target = f"{running.host}/worlds/acme:v4"
        with pytest.raises(InvalidInputError, match="log in with `docker login`"):
            await push(PushOrder(archive, target), QUIET)
        reference, pushed = await push(PushOrder(archive, target, READER), QUIET)
        assert (reference.tag, pushed.digest) == ("v4", digest)


async def test_a_world_goes_to_ecr_with_a_token_for_the_aws_credentials_at_hand(
    world: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, digest = world
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nothing"))
    order = PushOrder(archive, f"{ECR_HOST}/worlds/acme", is_plain=True)
    async with registry(tmp_path, password_auth(tmp_path)) as running, aiohttp.ClientSession() as http:
        for name, value in {"http_proxy": f"http://{running.host}", "no_proxy": "127.0.0.1"}.items():
            monkeypatch.delenv(name.upper(), raising=False)
            monkeypatch.setenv(name, value)  # ECR's host is then the registry
        with aws(monkeypatch):
            reference, pushed = await push(order, QUIET)
        assert (str(reference), pushed.digest, len(pushed.sent)) == (f"{ECR_HOST}/worlds/acme:v3", digest, 3)
        assert await RegistryClient(http).digest(Reference.parse(f"{running.host}/worlds/acme:v3"), READER) == digest
        with pytest.raises(InvalidInputError, match="check name and password"):
            await push(replace(order, credentials=Credentials("AWS", "another token")), QUIET)


@asynccontextmanager
async def breaking(behind: Registry, method: str, *, loses: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A relay before a registry that loses two requests of a method, or their answers; its host, and what was asked."""
    asked: list[str] = []

    async def relay(request: web.Request) -> web.Response:
        asked.append(request.method)
        is_broken = request.method == method and asked.count(method) in {2, 3}
        if is_broken and loses == "request":
            return web.Response(status=503)
        url, content = f"http://{behind.host}{request.raw_path}", await request.read()
        async with http.request(request.method, url, headers=request.headers, data=content) as answer:
            body = await answer.read()
            if is_broken:
                return web.Response(status=503)
            dropped = {"Content-Length", "Transfer-Encoding", "Connection"}
            headers = {name: text for name, text in answer.headers.items() if name not in dropped}
            return web.Response(status=answer.status, body=body, headers=headers)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", relay)
    async with aiohttp.ClientSession(auto_decompress=False) as http, web_server(app) as host:
        yield host, asked


@pytest.mark.parametrize(
    ("method", "piece_bytes", "loses", "num_uploads"),
    [("PATCH", 50_000, "request", 2), ("PATCH", 50_000, "answer", 4), ("PUT", 0, "request", 4)],
)
async def test_an_upload_that_breaks_off_goes_on_where_it_may_and_else_anew(
    world: tuple[Path, str], tmp_path: Path, method: str, piece_bytes: int, loses: str, num_uploads: int
) -> None:
    archive, digest = world
    async with (
        registry(tmp_path) as running,
        breaking(running, method, loses=loses) as (host, asked),
        aiohttp.ClientSession() as http,
    ):
        session = RegistrySession(http, Reference.parse(f"{host}/worlds/acme:v3"), None, clock=HeldClock())
        with OciArchive.opened(archive) as opened:
            pushed = await push_archive(opened, Uploader(session, piece_bytes), "v3")
        assert pushed.digest == digest
        assert await RegistryClient(http).digest(Reference.parse(f"{running.host}/worlds/acme:v3")) == digest
    assert asked.count("POST") == num_uploads, "two blobs, and what was begun anew"
