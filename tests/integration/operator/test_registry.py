"""Digests from a real registry: open, behind a password, behind a token service; and from ECR's API."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import boto3
import pytest
from aiohttp import web

from seatrial_operator.registry.client import RegistryClient
from seatrial_operator.registry.credentials import Credentials, docker_config
from seatrial_operator.registry.ecr import EcrClient, EcrRegistry
from seatrial_operator.registry.errors import ImageNotFoundError, RegistryUnavailableError, UnauthorizedError
from seatrial_operator.registry.reference import Reference
from seatrial_operator.registry.resolver import Resolver
from tests.aws import AWS_REGION, ECR_HOST, aws
from tests.registries import (
    MANIFEST,
    PASSWORD,
    USERNAME,
    Registry,
    TokenService,
    basic,
    digest_of,
    password_auth,
    registry,
)
from tests.web_servers import web_server

READER = Credentials(USERNAME, PASSWORD)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """Connections for one test."""
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def client(session: aiohttp.ClientSession) -> RegistryClient:
    """The client under test."""
    return RegistryClient(session)


def image(at: Registry, rest: str) -> Reference:
    """An image in a registry of this test."""
    return Reference.parse(f"{at.host}/{rest}")


@pytest.fixture
async def open_registry(tmp_path: Path) -> AsyncIterator[Registry]:
    """Anyone may read and write."""
    async with registry(tmp_path) as running:
        yield running


async def test_a_tag_is_the_digest_that_was_pushed(open_registry: Registry, client: RegistryClient) -> None:
    pushed = await open_registry.push("worlds/acme", "v1")
    assert await client.digest(image(open_registry, "worlds/acme:v1")) == pushed
    assert await client.digest(image(open_registry, f"worlds/acme@{pushed}")) == pushed


async def test_a_tag_of_an_index_is_the_digest_of_the_index(open_registry: Registry, client: RegistryClient) -> None:
    pushed = await open_registry.push("worlds/acme", "v1", is_index=True)
    alone = await open_registry.push("worlds/acme", "amd64")
    assert await client.digest(image(open_registry, "worlds/acme:v1")) == pushed != alone


async def test_a_tag_that_moved_is_another_digest(open_registry: Registry, client: RegistryClient) -> None:
    before = await open_registry.push("worlds/acme", "v1", mark="before")
    after = await open_registry.push("worlds/acme", "v1", mark="after")
    assert await client.digest(image(open_registry, "worlds/acme:v1")) == after != before


@pytest.mark.parametrize("rest", ["worlds/acme:v2", "worlds/none:v1", "worlds/acme@sha256:" + "0" * 64])
async def test_what_is_not_there_is_not_found(open_registry: Registry, client: RegistryClient, rest: str) -> None:
    await open_registry.push("worlds/acme", "v1")
    with pytest.raises(ImageNotFoundError, match=rest):
        await client.digest(image(open_registry, rest))


@pytest.mark.parametrize("image", ["host:port/a:v1", "host:99999/a", "a..b:5000//:v1"])
async def test_what_is_no_address_is_not_found(client: RegistryClient, image: str) -> None:
    with pytest.raises(ImageNotFoundError, match="no address of an image"):
        await client.digest(Reference.parse(image))


async def test_a_registry_that_is_gone_may_come_back(open_registry: Registry, client: RegistryClient) -> None:
    with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.1:1/worlds"):
        await client.digest(Reference.parse("127.0.0.1:1/worlds/acme:v1"))


async def test_a_password_lets_in_and_none_does_not(tmp_path: Path, client: RegistryClient) -> None:
    async with registry(tmp_path, password_auth(tmp_path)) as running:
        running.headers = basic(USERNAME, PASSWORD)
        pushed = await running.push("worlds/acme", "v1")
        wanted = image(running, "worlds/acme:v1")
        assert await client.digest(wanted, READER) == pushed
        with pytest.raises(UnauthorizedError, match=r"set spec\.pullSecret"):
            await client.digest(wanted)
        with pytest.raises(UnauthorizedError, match="rights of the pull secret's user"):
            await client.digest(wanted, Credentials(USERNAME, "wrong"))
        with pytest.raises(ImageNotFoundError):
            await client.digest(image(running, "worlds/none:v1"), READER)


async def test_a_token_is_fetched_for_the_one_repository(tmp_path: Path, client: RegistryClient) -> None:
    tokens = TokenService(tmp_path)
    await tokens.start()
    async with registry(tmp_path, tokens.auth) as running:
        running.headers = {"Authorization": f"Bearer {tokens.token('worlds/acme', 'pull', 'push')}"}
        pushed = await running.push("worlds/acme", "v1")
        wanted = image(running, "worlds/acme:v1")
        assert await client.digest(wanted, READER) == pushed
        assert tokens.scopes == ["repository:worlds/acme:pull"]
        with pytest.raises(UnauthorizedError, match=r"token service answers HTTP 401; set spec\.pullSecret"):
            await client.digest(wanted)
        with pytest.raises(UnauthorizedError, match="rights of the pull secret's user"):
            await client.digest(wanted, Credentials("stranger", "x"))
    await tokens.stop()


class OddRegistry:
    """Answers every request alike."""

    def __init__(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self._answer = {"status": status, "headers": headers or {}, "body": body}
        self.methods: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        """Answer."""
        self.methods.append(request.method)
        return web.Response(**self._answer)


@pytest.fixture
async def serve() -> AsyncIterator[Any]:
    """Starts odd registries and returns their hosts."""
    async with AsyncExitStack() as servers:

        async def start(odd: OddRegistry) -> str:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", odd.answer)
            return await servers.enter_async_context(web_server(app))

        yield start


async def test_a_digest_that_is_not_told_is_counted(serve: Any, client: RegistryClient) -> None:
    odd = OddRegistry(200, {"Content-Type": MANIFEST}, b"{}")
    assert await client.digest(Reference.parse(f"{await serve(odd)}/a:v1")) == digest_of(b"{}")
    assert odd.methods == ["HEAD", "GET"]


@pytest.mark.parametrize(("status", "retry_after"), [(429, 30.0), (500, None), (503, None)])
async def test_a_registry_in_trouble_is_asked_again_later(
    serve: Any, client: RegistryClient, status: int, retry_after: float | None
) -> None:
    odd = OddRegistry(status, {"Retry-After": "30"} if retry_after else None)
    with pytest.raises(RegistryUnavailableError, match=f"HTTP {status}") as caught:
        await client.digest(Reference.parse(f"{await serve(odd)}/a:v1"))
    assert caught.value.retry_after_seconds == retry_after


@pytest.mark.parametrize("header", [{}, {"WWW-Authenticate": 'Negotiate realm="a"'}])
async def test_an_unknown_challenge_is_a_refusal(serve: Any, client: RegistryClient, header: dict[str, str]) -> None:
    host = await serve(OddRegistry(401, header))
    with pytest.raises(UnauthorizedError, match="unknown scheme"):
        await client.digest(Reference.parse(f"{host}/a:v1"), READER)


@pytest.fixture
def ecr(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """boto3's client for an empty ECR."""
    with aws(monkeypatch):
        client = boto3.Session().client("ecr", region_name=AWS_REGION)
        yield client
        client.close()


async def test_ecr_tells_the_digest_of_a_tag(ecr: Any, session: aiohttp.ClientSession) -> None:
    ecr.create_repository(repositoryName="worlds/acme")
    manifest = f'{{"schemaVersion": 2, "mediaType": "{MANIFEST}", "config": {{}}, "layers": []}}'
    pushed = ecr.put_image(repositoryName="worlds/acme", imageManifest=manifest, imageTag="v1")
    resolver = Resolver(session, EcrClient())

    digest = await resolver.digest(Reference.parse(f"{ECR_HOST}/worlds/acme:v1"), None)

    assert digest == pushed["image"]["imageId"]["imageDigest"]


@pytest.mark.parametrize("rest", ["worlds/acme:v2", "worlds/none:v1"])
async def test_what_ecr_does_not_have_is_not_found(ecr: Any, session: aiohttp.ClientSession, rest: str) -> None:
    ecr.create_repository(repositoryName="worlds/acme")
    with pytest.raises(ImageNotFoundError, match=rest):
        await Resolver(session, EcrClient()).digest(Reference.parse(f"{ECR_HOST}/{rest}"), None)


async def test_a_token_of_ecr_opens_the_registry(ecr: Any, session: aiohttp.ClientSession, tmp_path: Path) -> None:
    account = EcrRegistry.of(Reference.parse(f"{ECR_HOST}/worlds/acme"))
    assert account is not None
    token = await EcrClient().token(account)
    async with registry(tmp_path, password_auth(tmp_path)) as running:
        running.headers = basic(USERNAME, PASSWORD)
        pushed = await running.push("worlds/acme", "v1")
        secret = docker_config({running.host: token.credentials}).encode()
        assert await Resolver(session, EcrClient()).digest(image(running, "worlds/acme:v1"), secret) == pushed


async def test_no_aws_role_is_a_refusal_that_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UnauthorizedError, match="give the operator's pod an AWS role"):
        await Resolver(session, EcrClient()).digest(Reference.parse(f"{ECR_HOST}/worlds/acme:v1"), None)


async def test_ecr_that_cannot_be_reached_may_be_later(
    monkeypatch: pytest.MonkeyPatch, session: aiohttp.ClientSession
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with pytest.raises(RegistryUnavailableError, match="worlds/acme:v1"):
        await Resolver(session, EcrClient()).digest(Reference.parse(f"{ECR_HOST}/worlds/acme:v1"), None)
