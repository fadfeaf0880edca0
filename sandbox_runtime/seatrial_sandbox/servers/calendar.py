"""MCP server `calendar`: list, read and change the events of the workspace's calendars.

Times without an offset are those of UTC; an event from one day to another takes whole days.
"""

from datetime import date, datetime, timedelta
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.calendar_files import CalendarStore, Event, instant, parse_moment
from seatrial_sandbox.mailbox_files import addresses
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

MAX_DAYS = 3660
"""Longest time that is looked through."""

_Time = Annotated[str, Field(description="Such as '2026-03-02T14:00' (UTC), or '2026-03-02' for a whole day.")]
_NewTime = Annotated[str | None, Field(description="Such as '2026-03-02T14:00'; as it is if left out.")]
_Calendar = Annotated[str | None, Field(description="Calendar, as list_calendars shows it; the first if left out.")]
_Id = Annotated[str, Field(description="Id of an event, such as 'work/event-3'.")]
_People = Annotated[list[str], Field(description="Addresses of those who take part.")]
_NewText = Annotated[str | None, Field(description="New text; as it is if left out.")]


class CalendarTools:
    """The tools of the server."""

    def __init__(self, workspace: Workspace) -> None:
        self._store = CalendarStore(workspace)

    def list_calendars(self) -> str:
        """List the calendars with the number of their events."""
        return "\n".join(f"{name}: {len(self._store.events(name))} events" for name in self._store.names())

    def list_events(self, first: _Time, last: _Time, calendar: _Calendar = None) -> str:
        """List what happens between two times, in order; events that repeat are listed each time."""
        begin, end = _span(first, last)
        names = [calendar] if calendar is not None else self._store.names()
        found = [
            (instant(start), _when(start, stop), event)
            for name in names
            for event in self._store.events(name)
            for start, stop in event.occurrences(begin, end)
        ]
        found.sort(key=lambda entry: (entry[0], entry[2].id))
        return "\n".join(f"{event.id} | {when} | {event.text('SUMMARY')}" for _, when, event in found) or "nothing"

    def read_event(self, event_id: _Id) -> str:
        """Read all that is known of an event."""
        event = self._store.find(event_id)
        facts = {
            "title": event.text("SUMMARY"),
            "when": _when(event.start, event.end),
            "repeats": event.rule,
            "place": event.text("LOCATION"),
            "organizer": event.text("ORGANIZER").removeprefix("mailto:"),
            "attendees": ", ".join(event.attendees),
            "description": event.text("DESCRIPTION"),
        }
        return "\n".join([event.id, *(f"{name}: {value}" for name, value in facts.items() if value)])

    def find_free_time(
        self,
        first: _Time,
        last: _Time,
        minutes: Annotated[int, Field(description="How long it has to be.", ge=1, le=1440)],
        calendars: Annotated[list[str], Field(description="Calendars to look at; all if left out.")] = [],  # noqa: B006  never changed
    ) -> str:
        """List the times between two times at which nothing happens, as long as is asked for or longer."""
        begin, end = _span(first, last)
        busy = sorted(
            (instant(start), instant(stop))
            for name in calendars or self._store.names()
            for event in self._store.events(name)
            for start, stop in event.occurrences(begin, end)
        )
        free, at = [], begin
        for start, stop in [*busy, (end, end)]:
            if start - at >= timedelta(minutes=minutes):
                free.append(_when(at, start))
            at = max(at, stop)
        return "\n".join(free) or f"there are no {minutes} free minutes between {first} and {last}"

    def create_event(
        self,
        title: Annotated[str, Field(description="What it is.", min_length=1)],
        start: _Time,
        end: _Time,
        place: Annotated[str, Field(description="Where.")] = "",
        attendees: _People = [],  # noqa: B006  never changed; a default that the schema shows
        repeats: Annotated[str, Field(description="How it repeats: 'FREQ=WEEKLY;COUNT=4'; not at all if empty.")] = "",
    ) -> str:
        """Put an event into the first calendar."""
        from icalendar import Event as Item  # noqa: PLC0415  a fifth of a second

        item = Item()
        item.add("SUMMARY", title)
        _set_times(item, parse_moment(start), parse_moment(end))
        if place:
            item.add("LOCATION", place)
        _set_attendees(item, attendees)
        _set_rule(item, repeats)
        names = self._store.names()
        if not names:
            raise ToolError("there is no calendar; a file calendar/work.ics would be one")
        return f"created {self._store.add(names[0], item)}"

    def update_event(
        self,
        event_id: _Id,
        title: _NewText = None,
        start: _NewTime = None,
        end: _NewTime = None,
        place: _NewText = None,
        attendees: Annotated[list[str] | None, Field(description="All who take part; as they are if left out.")] = None,
    ) -> str:
        """Change an event; if only its start moves, its end moves along."""
        event = self._store.find(event_id)
        item = event.item
        for name, text in (("SUMMARY", title), ("LOCATION", place)):
            if text is not None:
                item.pop(name, None)
                item.add(name, text)
        if start is not None or end is not None:
            begin = _where(event, parse_moment(start)) if start is not None else event.start
            until = _where(event, parse_moment(end)) if end is not None else begin + (event.end - event.start)
            _set_times(item, begin, until)
        if attendees is not None:
            _set_attendees(item, attendees)
        self._store.replace(event, item)
        return f"changed {event.id}: {item.get('SUMMARY', '')}, {_when(Event(event.calendar, item).start, event.end)}"

    def delete_event(self, event_id: _Id) -> str:
        """Delete an event, each time that it happens."""
        event = self._store.find(event_id)
        self._store.replace(event, None)
        return f"deleted {event.id}: {event.text('SUMMARY')}"


def build(workspace: Workspace) -> ToolServer:
    """The server `calendar` over a workspace."""
    server = ToolServer(
        "calendar", "Lists and changes the events of calendars.", libraries=("icalendar", "dateutil.rrule")
    )
    tools = CalendarTools(workspace)
    server.expose(tools.list_events, advice="ask for a shorter time", is_apart=True)
    for tool in (
        tools.list_calendars,
        tools.read_event,
        tools.find_free_time,
        tools.create_event,
        tools.update_event,
        tools.delete_event,
    ):
        server.expose(tool, is_apart=True)
    return server


def _span(first: str, last: str) -> tuple[datetime, datetime]:
    """The moments that two times mean; a day at the end is meant with all its hours."""
    begin, end = instant(parse_moment(first)), parse_moment(last)
    until = instant(end) if isinstance(end, datetime) else instant(end + timedelta(days=1))
    if until <= begin:
        raise ToolError(f"last is {last}, which is not after {first}")
    if until - begin > timedelta(days=MAX_DAYS):
        raise ToolError(f"from {first} to {last} are more than {MAX_DAYS} days; ask for less")
    return begin, until


def _when(start: date | datetime, end: date | datetime) -> str:
    if isinstance(start, datetime) and isinstance(end, datetime):
        is_short = start.date() == end.date()
        return f"{start:%Y-%m-%d %H:%M} to {end:{'%H:%M' if is_short else '%Y-%m-%d %H:%M'}}{_zone(start)}"
    last = end - timedelta(days=1)
    return f"{start}, all day" if last <= start else f"{start} to {last}, all day"


def _where(event: Event, moment: date | datetime) -> date | datetime:
    """A moment in the time zone of an event, so that what repeats keeps its hour there."""
    if isinstance(moment, datetime) and isinstance(event.start, datetime):
        return moment.astimezone(event.start.tzinfo)
    return moment


def _zone(moment: datetime) -> str:
    offset = moment.strftime("%z")
    return " UTC" if offset in {"", "+0000"} else f" ({offset})"


def _set_times(item: Any, start: date | datetime, end: date | datetime) -> None:
    if isinstance(start, datetime) != isinstance(end, datetime):
        raise ToolError("one of start and end is a whole day, the other is not; write both the same way")
    if not isinstance(end, datetime):
        end += timedelta(days=1)  # a person names the last day, a file the one after it
    if instant(end) <= instant(start):
        raise ToolError("end is not after start")
    for name, moment in (("DTSTART", start), ("DTEND", end)):
        item.pop(name, None)
        item.add(name, moment)
    item.pop("DURATION", None)


def _set_attendees(item: Any, people: list[str]) -> None:
    item.pop("ATTENDEE", None)
    for person in addresses(people):
        item.add("ATTENDEE", f"mailto:{person}")


def _set_rule(item: Any, rule: str) -> None:
    from dateutil.rrule import rrulestr  # noqa: PLC0415  seldom needed
    from icalendar import vRecur  # noqa: PLC0415  with the library

    if not rule:
        return
    try:
        rrulestr(rule)
        item.add("RRULE", vRecur.from_ical(rule.removeprefix("RRULE:")))
    except (ValueError, KeyError, TypeError):
        raise ToolError(f"repeats is {rule!r}; write a rule such as 'FREQ=WEEKLY;COUNT=4'") from None
