"""The parts of the spec that may change while the run goes on."""

from collections.abc import Iterable
from dataclasses import dataclass

import structlog
from pydantic import ValidationError

from seatrial_api.base import Auto
from seatrial_api.driver_request import LiveSettings
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRun
from seatrial_api.rules import stored_form
from seatrial_api.spec.operations import GuardsSpec

log = structlog.get_logger(__name__)


@dataclass
class LiveSpec:
    """What is asked for now, as the manifest says it or as it was changed since. Whoever acts on it asks each time."""

    run: RLRun

    @property
    def concurrency(self) -> Auto | int:
        """`spec.async.concurrency`."""
        return self.run.spec.async_.concurrency

    @property
    def guards(self) -> GuardsSpec:
        """`spec.guards`."""
        return self.run.spec.guards

    def change(self, body: bytes) -> LiveSettings:
        """Take over new settings, all of them or none.

        Args:
            body: `LiveSettings` as JSON.

        Returns:
            The settings in force.

        Raises:
            InvalidInputError: if they are not settings, or would make the run contradict itself.
        """
        try:
            settings = LiveSettings.model_validate_json(body)
            # With empty fields: leaving out a guard that is switched off would switch it on again.
            manifest = self.run.model_dump(mode="json", by_alias=True)
            manifest["spec"]["async"]["concurrency"] = settings.concurrency
            manifest["spec"]["guards"] = settings.guards.model_dump(mode="json", by_alias=True)
            self.run = RLRun.model_validate(manifest)
        except ValidationError as error:
            raise InvalidInputError("; ".join(_sentences(error))) from None
        log.info("settings changed", concurrency=settings.concurrency, guards=stored_form(settings.guards))
        return settings


def _sentences(error: ValidationError) -> Iterable[str]:
    """One for every field; what is wrong with each kind that a union allows is told together."""
    by_field: dict[str, list[str]] = {}
    for one in error.errors(include_url=False):
        # Of a union, pydantic names the kind that it tried: `constrained-int`, `literal['Auto']`.
        place = ".".join(str(part) for part in one["loc"] if str(part).replace("-", "_").isidentifier())
        by_field.setdefault(place.removesuffix(".constrained-int"), []).append(one["msg"])
    for place, messages in by_field.items():
        first, *others = dict.fromkeys(messages)
        found = " or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
        yield f"{place}: {found}" if place else found
