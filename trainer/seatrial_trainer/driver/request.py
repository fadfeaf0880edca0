"""How a launcher on the same machine finds the driver that works in a run's folder."""

from seatrial_api.base import ApiModel


class DriverAddress(ApiModel):
    """`driver.json` in the run's folder, there while a driver runs."""

    url: str
    """Base URL of the driver's server."""
    pid: int
    """Process id of the driver on its machine."""


ADDRESS_FILE = "driver.json"
LOG_FILE = "driver.log"
REFUSED = "the run cannot be started"
"""Event of the log's line whose `error` says why a driver refused what it was given."""
