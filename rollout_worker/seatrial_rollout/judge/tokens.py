"""Tokens of verifiers: a trial's process signs, the gateway holds the public key only."""

import time
from dataclasses import dataclass, field

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from pydantic import ValidationError

from seatrial_api.judge_token import JudgeClaims
from seatrial_api.sandbox_token import ALGORITHM
from seatrial_api.spec.judge import JudgeBudget
from seatrial_rollout.judge.errors import NotAllowedError


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The key of one run, new with each of its attempts: tokens of an earlier one open nothing."""

    private_pem: str = field(repr=False)

    @classmethod
    def generate(cls) -> "SigningKey":
        """A new key."""
        key = Ed25519PrivateKey.generate()
        return cls(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())

    @property
    def public_pem(self) -> str:
        """What tokens are checked with."""
        public = load_pem_private_key(self.private_pem.encode(), password=None).public_key()
        return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@dataclass(frozen=True, slots=True)
class JudgeAccess:
    """How a trial's process reaches the judge. It stays there: a sandbox gets a token, and only to verify."""

    run: str
    url: str
    """The gateway: `http://host:port`."""
    signing_key: SigningKey
    model: str
    """What to ask, unless the verifier knows better."""
    votes: int
    """Verdicts per criterion of a rubric."""
    budget: JudgeBudget
    """Of each trial."""

    def token(self, trial: str, verification: str, seconds: float) -> str:
        """A token that holds from now on.

        Args:
            trial: The trial.
            verification: Its verification.
            seconds: Time until the deadline.
        """
        now = time.time()
        claims = JudgeClaims(
            run=self.run,
            trial=trial,
            verification=verification,
            issued_at=int(now),
            expires_at=now + seconds,
            budget=self.budget,
        )
        return jwt.encode(claims.payload(), self.signing_key.private_pem, algorithm=ALGORITHM)


def check(token: str, public_pem: str, run: str) -> JudgeClaims:
    """What a token says.

    Raises:
        NotAllowedError: if it is not one of ours, of another run or phase, or its deadline has passed.
    """
    # The time of issue is not compared: another machine's clock may be ahead of ours.
    options: jwt.types.Options = {"require": ["aud", "exp", "iat", "jti", "sub"], "verify_iat": False}
    try:
        return JudgeClaims.model_validate(
            jwt.decode(token, public_pem, algorithms=[ALGORITHM], audience=run, options=options)
        )
    except (jwt.PyJWTError, ValidationError) as exc:
        reason = "it does not say who may ask" if isinstance(exc, ValidationError) else str(exc)
        raise NotAllowedError(
            f"only a verifier may ask the judge, with its token, until its deadline: {reason}"
        ) from exc
