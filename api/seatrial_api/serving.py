"""What the operator and the process that serves a RolloutPool on its own agree on."""

from pathlib import Path

from pydantic import Field

from seatrial_api.base import ApiModel, NonNegative
from seatrial_api.rollout_pool import EngineStatus
from seatrial_api.spec.model import ModelSpec
from seatrial_api.spec.rollout import EngineSpec

SERVING_PORT = 8000
"""Port of the pool's HTTP endpoint on the head."""
SERVING_PORT_NAME = "serve"
TOKEN_VARIABLE = "SEATRIAL_POOL_TOKEN"  # noqa: S105  the name of a variable
"""Environment variable with the token that every request below `/v1` and to `/generate` shows."""
REPORT_PATH = "/v1/pool"
"""Where the process tells how it is: a `PoolReport`."""


class ServingRequest(ApiModel):
    """What to serve. How many engines there are is not in it: one for every pod that offers itself."""

    pool: str
    """Name of the pool."""
    model: ModelSpec
    """The model; its weights never change."""
    engines: EngineSpec
    """How engines run; their number is not looked at."""
    base_dir: Path
    """Folder that a relative path of the model starts at, in every pod."""


class PoolReport(ApiModel):
    """A snapshot of the pool."""

    engines: list[EngineStatus] = Field(default_factory=list)
    """Every engine, by name."""
    failures: dict[str, str] = Field(default_factory=dict)
    """Why an engine is not there, by its name: what its newest start ended with."""
    running: NonNegative = 0
    """Requests that generate."""
    waiting: NonNegative = 0
    """Requests that wait for an engine."""
