"""Calendars as iCalendar files of a workspace: `calendar/<name>.ics`, one file per calendar."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError

from seatrial_sandbox.office_files import MAX_FILE_BYTES, replace_file, understood
from seatrial_sandbox.workspace import Workspace

FOLDER = "calendar"
"""Where the calendars lie in a workspace."""
MAX_OCCURRENCES = 1000
"""Most times that one event is shown to happen."""
_ENDING = ".ics"
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """An event and the calendar that holds it."""

    calendar: str
    item: Any
    """The `icalendar.Event`."""

    @property
    def id(self) -> str:
        """Calendar and UID: `work/event-3`."""
        return f"{self.calendar}/{self.text('UID')}"

    def text(self, name: str) -> str:
        """A property as text; empty if there is none."""
        return str(self.item.get(name, ""))

    @property
    def start(self) -> date | datetime:
        """When it begins: a moment, or a day for an event that takes all of it."""
        return _moment(self.item["DTSTART"].dt)

    @property
    def end(self) -> date | datetime:
        """When it ends."""
        if "DTEND" in self.item:
            return _moment(self.item["DTEND"].dt)
        if "DURATION" in self.item:
            return self.start + _length(self.item["DURATION"].dt)
        return self.start + (timedelta(0) if isinstance(self.start, datetime) else timedelta(days=1))

    @property
    def attendees(self) -> list[str]:
        """Addresses of those who take part."""
        found = self.item.get("ATTENDEE", [])
        return [str(person).removeprefix("mailto:") for person in (found if isinstance(found, list) else [found])]

    @property
    def rule(self) -> str:
        """How it repeats, as RRULE writes it; empty if it does not."""
        rule = self.item.get("RRULE")
        return rule.to_ical().decode() if rule is not None else ""

    def occurrences(self, first: datetime, last: datetime) -> Iterator[tuple[date | datetime, date | datetime]]:
        """When it happens between two moments, each with its end."""
        length = self.end - self.start
        for start in self._starts(first - length, last):
            end = start + length
            if instant(start) < last and (instant(end) > first or instant(start) >= first):
                yield start, end

    def _starts(self, first: datetime, last: datetime) -> Iterator[date | datetime]:
        if not self.rule:
            yield self.start
            return
        from dateutil.rrule import rrulestr  # noqa: PLC0415  seldom needed

        begin = self.start if isinstance(self.start, datetime) else datetime.combine(self.start, time(), UTC)
        rule = rrulestr(_with_utc_end(self.rule), dtstart=begin)
        left_out = {instant(moment.dt) for entry in _listed(self.item.get("EXDATE")) for moment in entry.dts}
        for moment in islice(rule.between(first, last, inc=True), MAX_OCCURRENCES):
            if instant(moment) not in left_out:
                yield moment if isinstance(self.start, datetime) else moment.date()


class CalendarStore:
    """The calendars of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def names(self) -> list[str]:
        """The calendars."""
        root = self._workspace.folder(FOLDER)
        return sorted(file.stem for file in root.glob(f"*{_ENDING}") if file.is_file() and not file.is_symlink())

    def events(self, calendar: str) -> list[Event]:
        """The events of a calendar.

        Raises:
            ToolError: If there is no such calendar, or its file is damaged.
        """
        path = self._path(calendar)
        with understood(path, "a calendar"):
            found = [Event(calendar, item) for item in self._read(calendar).walk("VEVENT")]
            for event in found:
                _ = (event.start, event.end)
        return found

    def find(self, event_id: str) -> Event:
        """The event of an id.

        Raises:
            ToolError: If there is none.
        """
        calendar, slash, uid = event_id.partition("/")
        if not slash:
            raise ToolError(f"{event_id!r} is no id; ids look like 'work/event-3', and list_events shows them")
        for event in self.events(calendar):
            if event.text("UID") == uid:
                return event
        raise ToolError(f"there is no event {event_id}; list_events shows the events of {calendar}")

    def add(self, calendar: str, item: Any) -> str:
        """Put a new event into a calendar; returns its id."""
        book = self._read(calendar)
        taken = {str(event.get("UID", "")) for event in book.walk("VEVENT")}
        number = next(number for number in range(1, len(taken) + 2) if f"event-{number}" not in taken)
        item.add("UID", f"event-{number}")
        item.add("DTSTAMP", _EPOCH)
        book.add_component(item)
        self._write(calendar, book)
        return f"{calendar}/event-{number}"

    def replace(self, event: Event, item: Any | None) -> None:
        """Put an event in another's place, or nothing."""
        book = self._read(event.calendar)
        uid = event.text("UID")
        kept = []
        for part in book.subcomponents:
            is_it = part.name == "VEVENT" and str(part.get("UID", "")) == uid
            if not is_it:
                kept.append(part)
            elif item is not None:
                kept.append(item)
        book.subcomponents = kept
        self._write(event.calendar, book)

    def _read(self, calendar: str) -> Any:
        from icalendar import Calendar  # noqa: PLC0415  a fifth of a second

        names = self.names()
        if calendar not in names:
            raise ToolError(f"there is no calendar {calendar!r}; the calendars are: {', '.join(names) or 'none'}")
        path = self._path(calendar)
        file: Path = self._workspace.file(path)
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ToolError(f"{path!r} is too large to open")
        with understood(path, "a calendar"):
            return Calendar.from_ical(file.read_bytes())

    def _write(self, calendar: str, book: Any) -> None:
        replace_file(self._workspace.file(self._path(calendar)), book.to_ical())

    @staticmethod
    def _path(calendar: str) -> str:
        return f"{FOLDER}/{calendar}{_ENDING}"


def parse_moment(text: str) -> date | datetime:
    """A day, or a moment in UTC, that a model wrote, with an offset or without.

    Raises:
        ToolError: If it is neither.
    """
    try:
        if len(text) == len("2026-03-02"):
            return date.fromisoformat(text)
        return instant(datetime.fromisoformat(text))
    except ValueError:
        raise ToolError(f"{text!r} is no time; write '2026-03-02T14:00', or '2026-03-02' for a whole day") from None


def instant(moment: date | datetime) -> datetime:
    """The moment at which a moment or a day begins, in UTC."""
    moment = _moment(moment)
    return moment.astimezone(UTC) if isinstance(moment, datetime) else datetime.combine(moment, time(), UTC)


def _moment(moment: date | datetime) -> date | datetime:
    """With an offset: times that do not say where are those of UTC."""
    if isinstance(moment, datetime) and moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    return moment


def _length(duration: object) -> timedelta:
    if not isinstance(duration, timedelta):
        raise ToolError("an event's DURATION is none")
    return duration


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _with_utc_end(rule: str) -> str:
    """The rule with its UNTIL as a moment of UTC, which is what an event with a time zone asks for."""
    parts = []
    for part in rule.split(";"):
        name, _, value = part.partition("=")
        if name.upper() == "UNTIL" and not value.endswith("Z"):
            value += "Z" if "T" in value else "T235959Z"
        parts.append(f"{name}={value}")
    return ";".join(parts)
