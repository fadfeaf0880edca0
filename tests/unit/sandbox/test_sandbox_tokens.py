from collections.abc import Callable

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from seatrial_api.errors import InvalidInputError
from seatrial_api.sandbox_token import ALGORITHM, METHODS, Method, Phase, SandboxClaims
from seatrial_sandbox.daemon.authority import Authority, InvalidTokenError, public_key
from seatrial_sandbox.errors import SandboxAccessError

NOW = 1_000_000
KEY = Ed25519PrivateKey.generate()
FACTS = {
    "aud": "pod-1",
    "sub": "trial-1",
    "iat": NOW,
    "exp": NOW + 600,
    "phase": "Agent",
    "methods": ["Exec", "Health"],
}


def authority() -> Authority:
    return Authority(KEY.public_key(), "pod-1", now=lambda: NOW)


def token(key: Ed25519PrivateKey = KEY, **changed: object) -> str:
    facts = {**FACTS, **changed}
    return jwt.encode({name: value for name, value in facts.items() if value is not None}, key, algorithm=ALGORITHM)


def test_a_good_token_opens_what_it_names_and_binds_the_sandbox_to_its_trial() -> None:
    admits = authority()
    admits.admit(token(), Method.EXEC, Phase.AGENT)
    assert admits.trial == "trial-1"
    with pytest.raises(SandboxAccessError, match="another trial"):
        admits.admit(token(sub="trial-2"), Method.EXEC, Phase.AGENT)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(lambda: "", id="none"),
        pytest.param(lambda: "a.b.c", id="garbage"),
        pytest.param(lambda: token(Ed25519PrivateKey.generate()), id="another key"),
        pytest.param(lambda: token(aud="pod-2"), id="another sandbox"),
        pytest.param(lambda: token(exp=NOW - 60), id="expired"),
        pytest.param(lambda: token(iat=NOW + 60), id="from the future"),
        pytest.param(lambda: token(exp=NOW + 100_000), id="too long a life"),
        pytest.param(lambda: token(exp=None), id="no end"),
        pytest.param(lambda: token(aud=None), id="any sandbox"),
        pytest.param(lambda: token(phase="Root"), id="unknown phase"),
        pytest.param(lambda: token(methods=[]), id="no methods"),
        pytest.param(lambda: token(admin=True), id="more than is known"),
        pytest.param(lambda: jwt.encode(FACTS, "secret" * 8, algorithm="HS256"), id="symmetric"),
        pytest.param(lambda: jwt.encode(FACTS, None, algorithm="none"), id="unsigned"),
        pytest.param(lambda: jwt.encode(FACTS, _pem(), algorithm="HS256"), id="signed with the public key"),
    ],
)
def test_a_token_that_does_not_hold_is_refused(bad: Callable[[], str]) -> None:
    try:
        shown = bad()
    except jwt.InvalidKeyError:  # the library refuses to make it
        return
    with pytest.raises(InvalidTokenError):
        authority().admit(shown, Method.EXEC, Phase.AGENT)


def _pem() -> bytes:
    return KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_a_token_opens_only_its_methods_and_its_phase() -> None:
    for method, phase in [(Method.UPLOAD, Phase.AGENT), (Method.EXEC, Phase.VERIFY)]:
        with pytest.raises(SandboxAccessError):
            authority().admit(token(), method, phase)


def test_no_token_of_the_agents_phase_begins_verification_whatever_it_claims() -> None:
    for method in (Method.FREEZE, Method.DIFF, Method.AUDIT):
        with pytest.raises(SandboxAccessError, match="does not allow"):
            authority().admit(token(methods=[method]), method, Phase.AGENT)


def test_a_verify_token_does_one_thing_while_the_agent_acts() -> None:
    shown = token(phase="Verify", methods=sorted(METHODS[Phase.VERIFY]))
    authority().admit(shown, Method.FREEZE, Phase.AGENT)
    for method in METHODS[Phase.VERIFY] - {Method.FREEZE}:
        with pytest.raises(SandboxAccessError, match="is in phase Agent"):
            authority().admit(shown, method, Phase.AGENT)


def test_claims_survive_the_way_through_a_token() -> None:
    claims = SandboxClaims(
        sandbox="pod-1", trial="t", issued_at=1, expires_at=2, phase=Phase.VERIFY, methods=METHODS[Phase.VERIFY]
    )
    payload = jwt.decode(jwt.encode(claims.payload(), KEY, algorithm=ALGORITHM), options={"verify_signature": False})
    assert SandboxClaims.model_validate(payload) == claims


@pytest.mark.parametrize("pem", ["", "no key", None])
def test_a_key_that_is_none_is_told(pem: str | None) -> None:
    other = generate_private_key(SECP256R1()).public_key()
    text = other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode() if pem is None else pem
    with pytest.raises(InvalidInputError, match="publicKey"):
        public_key(text)
