"""Credentials as Docker's configuration and helpers give them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from seatrial.push.credentials import find_credentials
from seatrial_api.errors import InvalidInputError
from seatrial_operator.registry.credentials import Credentials
from seatrial_operator.registry.reference import Reference

IMAGE = Reference.parse("registry.test/worlds/acme:v1")
STORED = {"registry.test": {"auth": "dTpw"}}


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for Docker's configuration, and for helpers."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


async def find(docker: Path, **config: Any) -> Credentials | None:
    (docker / "config.json").write_text(json.dumps(config))
    return await find_credentials(IMAGE, {"DOCKER_CONFIG": str(docker)})


def helper(docker: Path, script: str) -> None:
    path = docker / "docker-credential-it"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_what_a_login_stored_is_found_and_without_one_nothing_is(docker: Path) -> None:
    assert await find_credentials(IMAGE, {"DOCKER_CONFIG": str(docker)}) is None
    assert await find(docker) is None
    assert await find(docker, auths=STORED) == Credentials("u", "p")


async def test_a_helper_goes_before_the_store_and_a_store_before_what_is_written_down(docker: Path) -> None:
    helper(docker, 'echo "{\\"Username\\": \\"h\\", \\"Secret\\": \\"$(cat)\\"}"')
    told = Credentials("h", "registry.test")
    assert await find(docker, auths=STORED, credsStore="none", credHelpers={"registry.test": "it"}) == told
    assert await find(docker, auths=STORED, credsStore="it") == told


async def test_a_helper_that_knows_nothing_leaves_it_to_what_is_written_down(docker: Path) -> None:
    helper(docker, "echo 'credentials not found in native keychain'; exit 1")
    assert await find(docker, auths=STORED, credsStore="it") == Credentials("u", "p")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo locked >&2; exit 1", "docker-credential-it gives no credentials for registry.test: locked"),
        ("echo nonsense", "docker-credential-it, which Docker's configuration names, cannot be used"),
        ('echo \'{"Username": "<token>", "Secret": "s"}\'', "identity token .* give --username and --password-stdin"),
    ],
)
async def test_a_helper_that_fails_is_named(docker: Path, script: str, told: str) -> None:
    helper(docker, script)
    with pytest.raises(InvalidInputError, match=told):
        await find(docker, credsStore="it")


async def test_a_configuration_that_is_none_is_named(docker: Path) -> None:
    (docker / "config.json").write_text("no JSON")
    with pytest.raises(InvalidInputError, match="is no Docker configuration"):
        await find_credentials(IMAGE, {"DOCKER_CONFIG": str(docker)})
