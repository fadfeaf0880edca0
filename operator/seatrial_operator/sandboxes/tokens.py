"""Tokens that open `sandboxd`: the broker signs, sandboxes hold the public key only."""

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Self

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from seatrial_api.errors import InvalidInputError
from seatrial_api.sandbox_token import ALGORITHM, METHODS, Phase, SandboxClaims
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.errors import AlreadyExistsError
from seatrial_operator.kube.resources import SECRETS
from seatrial_operator.manifests.names import MANAGED_BY

_KEY = "private.pem"


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """Signs with the key that all brokers of a cluster share, so that sandboxes outlive a broker."""

    private_key: Ed25519PrivateKey
    token_seconds: float

    @classmethod
    async def load(cls, client: KubeClient, namespace: str, name: str, token_seconds: float) -> Self:
        """The key of a Secret; a new one if there is none.

        Raises:
            InvalidInputError: if the Secret holds something else.
            KubeError: if the API server is not to be reached.
        """
        found = await client.find(SECRETS, namespace, name)
        if found is None:
            found = await _make(client, namespace, name)
        try:
            key = load_pem_private_key(b64decode(found["data"][_KEY]), password=None)
        except (KeyError, ValueError) as exc:
            msg = (
                f"the Secret {namespace}/{name} holds no key under {_KEY}; delete it, and every sandbox with it: {exc}"
            )
            raise InvalidInputError(msg) from exc
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidInputError(f"the key of the Secret {namespace}/{name} is not of the kind Ed25519")
        return cls(key, token_seconds)

    @property
    def public_key(self) -> str:
        """What sandboxes check tokens with, as PEM."""
        return self.private_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def sign(self, sandbox_uid: str, trial: str, phase: Phase, wall: float) -> str:
        """A token for one trial in one sandbox and phase.

        Args:
            sandbox_uid: Uid of the pod.
            trial: The trial.
            phase: Who acts.
            wall: Now, in s since the epoch.
        """
        claims = SandboxClaims(
            sandbox=sandbox_uid,
            trial=trial,
            issued_at=int(wall),
            expires_at=int(wall + self.token_seconds),
            phase=phase,
            methods=METHODS[phase],
        )
        return jwt.encode(claims.payload(), self.private_key, algorithm=ALGORITHM)


async def _make(client: KubeClient, namespace: str, name: str) -> dict[str, dict[str, str]]:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    manifest = {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {"name": name, "labels": MANAGED_BY},
        "data": {_KEY: b64encode(pem).decode()},
    }
    try:
        return await client.create(SECRETS, namespace, manifest)
    except AlreadyExistsError:  # another broker was faster
        return await client.get(SECRETS, namespace, name)
