"""A real registry (Debian's docker-registry) for tests, a small client that pushes to it, and a token service."""

import asyncio
import base64
import hashlib
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"

USERNAME, PASSWORD = "reader", "secret"
_BCRYPT_LINES = (
    "reader:$2b$04$uO6kJa.CSuwYRegpanl.xeacimEAT5i/rRfIaMh5W3poDOWn1XAwy",
    "AWS:$2b$04$LfQlQpAp8gc2e6esnMtSoOwhVMnhA0XMwROZZEN5Z265baaeDotCi",
)
"""`htpasswd` lines: the reader, and the token that moto's ECR gives out for the account."""
_LISTENING = re.compile(rb"listening on 127\.0\.0\.1:(\d+)")


def digest_of(content: bytes) -> str:
    """The name of a piece of content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Registry:
    """A running registry."""

    host: str
    headers: dict[str, str] = field(default_factory=dict)
    """What a request needs to be let in."""

    async def push(self, repository: str, tag: str, *, mark: str = "", is_index: bool = False) -> str:
        """Push an image without layers, one mark one digest, and return what the tag then stands for."""
        async with aiohttp.ClientSession(f"http://{self.host}", headers=self.headers, raise_for_status=True) as http:
            config = json.dumps({"architecture": "amd64", "os": "linux", "mark": mark}).encode()
            await self._push_blob(http, repository, config)
            about = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest_of(config)}
            manifest = _document(MANIFEST, config=about | {"size": len(config)}, layers=[])
            if is_index:
                await self._push_manifest(http, repository, digest_of(manifest), MANIFEST, manifest)
                entry = {"mediaType": MANIFEST, "digest": digest_of(manifest), "size": len(manifest)}
                index = _document(INDEX, manifests=[entry | {"platform": {"architecture": "amd64", "os": "linux"}}])
                return await self._push_manifest(http, repository, tag, INDEX, index)
            return await self._push_manifest(http, repository, tag, MANIFEST, manifest)

    async def delete(self, repository: str, digest: str) -> None:
        """Remove an image with all its tags."""
        url = f"http://{self.host}/v2/{repository}/manifests/{digest}"
        async with aiohttp.request("DELETE", url, headers=self.headers, raise_for_status=True):
            pass

    async def _push_blob(self, http: aiohttp.ClientSession, repository: str, content: bytes) -> None:
        async with http.post(f"/v2/{repository}/blobs/uploads/") as started:
            location = started.headers["Location"]
        async with http.put(location + f"&digest={digest_of(content)}", data=content):
            pass

    async def _push_manifest(
        self, http: aiohttp.ClientSession, repository: str, name: str, kind: str, content: bytes
    ) -> str:
        headers = {"Content-Type": kind}
        async with http.put(f"/v2/{repository}/manifests/{name}", data=content, headers=headers) as answer:
            return answer.headers["Docker-Content-Digest"]


def _document(media_type: str, **content: Any) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": media_type, **content}).encode()


@asynccontextmanager
async def registry(folder: Path, auth: Mapping[str, Any] | None = None) -> AsyncIterator[Registry]:
    """A registry on a free port, which lets anyone in unless `auth` says otherwise."""
    if shutil.which("docker-registry") is None:
        pytest.skip("needs docker-registry (apt-get install docker-registry)")
    config = {
        "version": 0.1,
        "log": {"accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}, "delete": {"enabled": True}},
        "http": {"addr": "127.0.0.1:0"},
        **({"auth": dict(auth)} if auth else {}),
    }
    (folder / "registry.yaml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        *("docker-registry", "serve", str(folder / "registry.yaml")),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(120):
            while not (found := _LISTENING.search(line := await process.stderr.readline())):
                assert line, "docker-registry ended before it listened"
        drain = asyncio.get_running_loop().create_task(_drain(process.stderr))
        yield Registry(f"127.0.0.1:{int(found[1])}")
        drain.cancel()
        await asyncio.wait([drain])
    finally:
        process.kill()
        await process.wait()


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass


def password_auth(folder: Path) -> dict[str, Any]:
    """Settings under which the registry lets in a reader, and whoever has a token of moto's ECR."""
    path = folder / "htpasswd"
    path.write_text("\n".join(_BCRYPT_LINES) + "\n")
    return {"htpasswd": {"realm": "test", "path": str(path)}}


def basic(username: str, password: str) -> dict[str, str]:
    """The header that brings a name and a password."""
    return {"Authorization": "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()}


class TokenService:
    """Gives out tokens that a registry trusts, to one user for one repository."""

    SERVICE = "registry.test"

    def __init__(self, folder: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._certificate = _self_signed(self._key)
        self._bundle = folder / "bundle.pem"
        self._bundle.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self._runner: web.AppRunner | None = None
        self._url = ""
        self.scopes: list[str] = []
        """Scopes asked for, in order."""

    async def start(self) -> None:
        """Listen on a free port."""
        app = web.Application()
        app.router.add_get("/token", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/token"

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def auth(self) -> dict[str, Any]:
        """Settings under which a registry trusts this service."""
        about = {"realm": self._url, "service": self.SERVICE, "issuer": "test"}
        return {"token": about | {"rootcertbundle": str(self._bundle)}}

    def token(self, repository: str, *actions: str) -> str:
        """A token for one repository."""
        now = int(time.time())
        access = [{"type": "repository", "name": repository, "actions": list(actions)}]
        claims = {"iss": "test", "aud": self.SERVICE, "sub": USERNAME, "nbf": now - 10, "exp": now + 300, "jti": "1"}
        chain = [base64.b64encode(self._certificate.public_bytes(serialization.Encoding.DER)).decode()]
        return jwt.encode(claims | {"access": access}, self._key, algorithm="RS256", headers={"x5c": chain})

    async def _answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != basic(USERNAME, PASSWORD)["Authorization"]:
            return web.json_response({"errors": [{"code": "UNAUTHORIZED"}]}, status=401)
        scope = request.query["scope"]
        self.scopes.append(scope)
        _, repository, actions = scope.split(":")
        return web.json_response({"token": self.token(repository, *actions.split(","))})


def _self_signed(key: rsa.RSAPrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    start = datetime.fromtimestamp(time.time(), UTC) - timedelta(days=1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start)
    return builder.not_valid_after(start + timedelta(days=3)).sign(key, hashes.SHA256())
