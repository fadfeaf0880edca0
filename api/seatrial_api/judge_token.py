"""Tokens that let one trial's verifier ask the judge: made when verification begins, void when its time is up.

They are JWTs signed as those of sandboxes are (`sandbox_token`); the gateway holds the public key only.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from seatrial_api.sandbox_token import Phase
from seatrial_api.spec.judge import JudgeBudget


class JudgeClaims(BaseModel):
    """What a token says, by the names that JWT has for it."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, use_attribute_docstrings=True)

    run: Annotated[str, Field(alias="aud", min_length=1)]
    """The run whose gateway it opens."""
    trial: Annotated[str, Field(alias="sub", min_length=1)]
    """The trial that is verified."""
    verification: Annotated[str, Field(alias="jti", min_length=1)]
    """Names this verification: a trial that is tried again has another."""
    issued_at: Annotated[int, Field(alias="iat", ge=0)]
    """Time of issue in s since the epoch: the beginning of verification."""
    expires_at: Annotated[float, Field(alias="exp", ge=0)]
    """Deadline of verification in s since the epoch."""
    phase: Literal[Phase.VERIFY] = Phase.VERIFY
    """No other phase may ask."""
    budget: JudgeBudget
    """What the verification may use up in all, whatever the number of its tokens."""

    def payload(self) -> dict[str, Any]:
        """The claims as a JWT carries them."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
