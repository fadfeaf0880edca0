"""Who may call what: tokens are verified, then held against the phase and the trial that the sandbox belongs to."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import ValidationError

from seatrial_api.errors import InvalidInputError
from seatrial_api.sandbox_token import (
    ALGORITHM,
    CLOCK_SKEW_SECONDS,
    MAX_LIFETIME_SECONDS,
    METHODS,
    Method,
    Phase,
    SandboxClaims,
)
from seatrial_sandbox.errors import SandboxAccessError

_CHECKED_HERE = {"verify_exp": False, "verify_iat": False, "require": ["aud", "exp", "iat", "sub"]}


class InvalidTokenError(SandboxAccessError):
    """There is no token, or it does not hold, or no longer."""


@dataclass(slots=True)
class Authority:
    """Admits calls to one sandbox."""

    key: Ed25519PublicKey
    sandbox: str
    """Name that tokens must be made out for."""
    now: Callable[[], float] = time.time
    """Seconds since the epoch."""
    trial: str = field(default="", init=False)
    """Trial of the first call that was admitted; no other trial is from then on."""

    def admit(self, token: str, method: Method, phase: Phase) -> None:
        """Let a call pass.

        Args:
            token: What the caller shows.
            method: What it calls.
            phase: The sandbox's phase now.

        Raises:
            InvalidTokenError: If the token does not hold.
            SandboxAccessError: If it holds, but not for this call, or not now.
        """
        claims = self._verify(token)
        if method not in claims.methods & METHODS[claims.phase]:
            raise SandboxAccessError(f"the token of phase {claims.phase} does not allow {method}")
        begins_verification = method is Method.FREEZE and claims.phase is Phase.VERIFY
        if claims.phase is not phase and not begins_verification:
            raise SandboxAccessError(f"the token is of phase {claims.phase}, the sandbox is in phase {phase}")
        if self.trial and claims.trial != self.trial:
            raise SandboxAccessError("the sandbox belongs to another trial")
        self.trial = claims.trial

    def _verify(self, token: str) -> SandboxClaims:
        try:
            payload = jwt.decode(
                token,
                self.key,
                algorithms=[ALGORITHM],
                audience=self.sandbox,
                options=_CHECKED_HERE,  # type: ignore[arg-type]  # a TypedDict
            )
            claims = SandboxClaims.model_validate(payload)
        except (jwt.InvalidTokenError, ValidationError) as error:
            raise InvalidTokenError(f"the token is not valid: {error}") from error
        now = self.now()
        if claims.expires_at <= now - CLOCK_SKEW_SECONDS:
            raise InvalidTokenError("the token has expired")
        if claims.issued_at > now + CLOCK_SKEW_SECONDS:
            raise InvalidTokenError("the token is from the future; compare the clocks")
        if claims.expires_at - claims.issued_at > MAX_LIFETIME_SECONDS:
            raise InvalidTokenError(f"the token holds for longer than {MAX_LIFETIME_SECONDS:g} s")
        return claims


def public_key(pem: str) -> Ed25519PublicKey:
    """The key of a PEM text.

    Raises:
        InvalidInputError: If it is none of Ed25519.
    """
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInputError(f"publicKey is no PEM of a public key: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInputError("publicKey is not of Ed25519")
    return key
