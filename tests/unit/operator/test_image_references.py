"""References, challenges and pull secrets: what registries and users write, and how it is read."""

import base64
import json

import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_operator.registry.challenge import Challenge
from seatrial_operator.registry.credentials import Credentials, credentials_in, docker_config
from seatrial_operator.registry.ecr import EcrRegistry
from seatrial_operator.registry.reference import Reference

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("python", "docker.io", "library/python", "latest", None),
        ("python:3.12", "docker.io", "library/python", "3.12", None),
        ("docker.io/python:3.12", "docker.io", "library/python", "3.12", None),
        ("team/world:v1", "docker.io", "team/world", "v1", None),
        ("localhost/world:v1", "localhost", "world", "v1", None),
        ("registry:5000/world", "registry:5000", "world", "latest", None),
        ("ghcr.io/a/b/c:v1", "ghcr.io", "a/b/c", "v1", None),
        (f"ghcr.io/a/b@{DIGEST}", "ghcr.io", "a/b", None, DIGEST),
        (f"ghcr.io/a/b:v1@{DIGEST}", "ghcr.io", "a/b", "v1", DIGEST),
    ],
)
def test_a_reference_is_read_as_container_runtimes_read_it(
    text: str, registry: str, repository: str, tag: str | None, digest: str | None
) -> None:
    assert Reference.parse(text) == Reference(registry, repository, tag, digest)


def test_a_pinned_reference_names_the_content_alone() -> None:
    assert str(Reference.parse("ghcr.io/a/b:v1").pinned(DIGEST)) == f"ghcr.io/a/b@{DIGEST}"


def test_docker_hub_is_asked_at_its_api_host() -> None:
    assert Reference.parse("python").api_host == "registry-1.docker.io"
    assert Reference.parse("ghcr.io/a/b").api_host == "ghcr.io"


@pytest.mark.parametrize(
    ("image", "region"),
    [
        ("123456789012.dkr.ecr.eu-central-1.amazonaws.com/worlds/acme:v1", "eu-central-1"),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com/acme", "us-gov-west-1"),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/acme", "cn-north-1"),
        ("123456789012.dkr-ecr.us-east-1.on.aws/acme", "us-east-1"),
        ("public.ecr.aws/acme/world", None),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com.evil.example/acme", None),
    ],
)
def test_private_ecr_registries_are_recognised(image: str, region: str | None) -> None:
    found = EcrRegistry.of(Reference.parse(image))
    assert (found.region if found else None) == region


@pytest.mark.parametrize(
    ("header", "scheme", "parameters"),
    [
        ('Basic realm="Registry Realm"', "basic", {"realm": "Registry Realm"}),
        (
            'Bearer realm="https://a.example/token",service="a.example",scope="repository:b:pull,push"',
            "bearer",
            {"realm": "https://a.example/token", "service": "a.example", "scope": "repository:b:pull,push"},
        ),
        ("bearer Realm=https://a.example , service = a", "bearer", {"realm": "https://a.example", "service": "a"}),
        ('Basic realm="a \\"b\\""', "basic", {"realm": 'a "b"'}),
        ("", "", {}),
    ],
)
def test_a_challenge_is_read(header: str, scheme: str, parameters: dict[str, str]) -> None:
    assert Challenge.parse(header) == Challenge(scheme, parameters)


def auths(**by_key: str) -> str:
    """A Docker config in which each user is named after what the entry is for."""
    return json.dumps({"auths": {key: {"username": user, "password": "x"} for key, user in by_key.items()}})


@pytest.mark.parametrize(
    ("key", "image", "is_for"),
    [
        ("ghcr.io", "ghcr.io/a/b", True),
        ("https://ghcr.io", "ghcr.io/a/b", True),
        ("https://ghcr.io/v2/", "ghcr.io/a/b", True),
        ("ghcr.io/a", "ghcr.io/a/b", True),
        ("ghcr.io/a", "ghcr.io/ab/c", False),
        ("*.example.com", "registry.example.com/a", True),
        ("*.example.com", "a.b.example.com/a", False),
        ("registry.example.com", "registry.example.com:5000/a", False),
        ("https://index.docker.io/v1/", "team/world", True),
        ("https://index.docker.io/v1/", "ghcr.io/team/world", False),
    ],
)
def test_credentials_are_found_as_kubelets_find_them(key: str, image: str, is_for: bool) -> None:
    found = credentials_in(auths(**{key: "user"}), Reference.parse(image))
    assert (found is not None) == is_for


def test_the_entry_with_the_longest_path_wins() -> None:
    config = auths(**{"ghcr.io": "all", "ghcr.io/a/b": "b", "ghcr.io/a": "a"})
    found = credentials_in(config, Reference.parse("ghcr.io/a/b:v1"))
    assert found == Credentials("b", "x")


def test_what_is_written_is_read_back() -> None:
    config = docker_config({"ghcr.io": Credentials("user", "pass:word")})
    assert credentials_in(config, Reference.parse("ghcr.io/a")) == Credentials("user", "pass:word")


def test_credentials_may_be_encoded_in_one_field() -> None:
    encoded = base64.b64encode(b"user:pass:word").decode()
    config = json.dumps({"auths": {"ghcr.io": {"auth": encoded}}})
    assert credentials_in(config, Reference.parse("ghcr.io/a")) == Credentials("user", "pass:word")


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"auths": {"ghcr.io": {}}}', '{"auths": 1}'])
def test_a_broken_pull_secret_says_how_to_make_a_sound_one(config: str) -> None:
    with pytest.raises(InvalidInputError, match="kubectl create secret docker-registry"):
        credentials_in(config, Reference.parse("ghcr.io/a"))


def test_a_password_is_never_printed() -> None:
    assert "secret" not in repr(Credentials("user", "secret"))
