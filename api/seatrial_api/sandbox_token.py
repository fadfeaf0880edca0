"""Tokens that let a caller into one sandbox for a while: who makes them signs, the sandbox holds the public key only.

They are JWTs signed with Ed25519:

    jwt.encode(claims.payload(), private_key, algorithm=ALGORITHM)
    SandboxClaims.model_validate(jwt.decode(token, public_key, algorithms=[ALGORITHM], audience=sandbox))
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

ALGORITHM = "EdDSA"
"""The one signature that a sandbox takes."""
MAX_LIFETIME_SECONDS = 3600.0
"""Longest time that a token may hold from its issue on; a sandbox refuses one made out for longer."""
CLOCK_SKEW_SECONDS = 10.0
"""How far the clocks of signer and sandbox may differ."""


class Phase(StrEnum):
    """Who acts in a sandbox."""

    AGENT = "Agent"
    """The agent; tests and the verifier's logs do not exist."""
    VERIFY = "Verify"
    """The verifier; the agent's processes are gone."""


class Method(StrEnum):
    """A call of the service `seatrial.v1.Sandboxd`."""

    HEALTH = "Health"
    EXEC = "Exec"
    UPLOAD = "Upload"
    UPLOAD_OFFSET = "UploadOffset"
    DOWNLOAD = "Download"
    SNAPSHOT = "Snapshot"
    RESTORE = "Restore"
    DIFF = "Diff"
    FREEZE = "Freeze"
    AUDIT = "Audit"
    CONNECT = "Connect"
    LISTEN = "Listen"


_FILES = {Method.UPLOAD, Method.UPLOAD_OFFSET, Method.DOWNLOAD}

METHODS: dict[Phase, frozenset[Method]] = {
    Phase.AGENT: frozenset(
        {Method.HEALTH, Method.EXEC, *_FILES, Method.SNAPSHOT, Method.RESTORE, Method.CONNECT, Method.LISTEN}
    ),
    Phase.VERIFY: frozenset(
        {Method.HEALTH, Method.EXEC, *_FILES, Method.SNAPSHOT, Method.DIFF, Method.FREEZE, Method.AUDIT, Method.LISTEN}
    ),
}
"""What each phase is for; no token can allow more. Freeze, of phase Verify, is what begins that phase."""


class SandboxClaims(BaseModel):
    """What a token says, by the names that JWT has for it."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, use_attribute_docstrings=True)

    sandbox: Annotated[str, Field(alias="aud", min_length=1)]
    """The sandbox that it opens: the uid of its pod, so that it never opens the next pod of the same name."""
    trial: Annotated[str, Field(alias="sub", min_length=1)]
    """The trial on whose behalf; the first call binds the sandbox to its trial."""
    issued_at: Annotated[int, Field(alias="iat", ge=0)]
    """Time of issue in s since the epoch."""
    expires_at: Annotated[int, Field(alias="exp", ge=0)]
    """Time from which it is refused, in s since the epoch."""
    phase: Phase
    """Phase in which it opens the sandbox."""
    methods: Annotated[frozenset[Method], Field(min_length=1)]
    """Calls that it allows, of those of its phase."""

    def payload(self) -> dict[str, Any]:
        """The claims as a JWT carries them."""
        return self.model_dump(mode="json", by_alias=True)
