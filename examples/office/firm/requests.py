"""What people have asked for by mail and in the chat; the requests of all tasks stand in one world."""

from dataclasses import dataclass, field

from firm.facts import Firm

TRIES = 3
"""How many tasks of each kind there are."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A mail to the clerk."""

    key: str
    """Whose task it belongs to."""
    sender: str
    subject: str
    text: str
    attached: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """What somebody wrote in a channel."""

    key: str
    channel: str
    user: str
    text: str
    answers: int = 0
    """Number of the post that it answers."""


def letters(firm: Firm) -> list[Letter]:
    """The inbox, oldest first."""
    found = []
    people = list(firm.people.values())[1:]
    for number in range(TRIES):
        vendor, person = firm.vendors[number], people[number]
        open_bill = firm.of(vendor.name, "open")[0]
        found += [
            Letter(
                f"status-{number}",
                vendor.mail,
                f"Question about {open_bill.number}",
                f"Dear Kim,\nin which state is our invoice {open_bill.number}, and over how much?\n{vendor.name}\n",
            ),
            Letter(
                f"meet-{number}",
                person.mail,
                f"Meeting about the {('fair', 'audit', 'move')[number]}",
                f"Hi Kim,\nplease book an hour on 2026-03-{10 + number} at {13 + number}:00.\n{person.name}\n",
            ),
            Letter(
                f"prices-{number}",
                firm.vendors[number + 3].mail,
                "New prices",
                "Dear Kim,\nour prices change; the list is attached. Please take them into the contract.\n",
                {"prices.csv": _new_prices(firm, number)},
            ),
            Letter(
                f"reminder-{number}",
                firm.vendors[number + 3].mail,
                "Reminder",
                "Dear Kim,\none of our invoices is overdue. Whom may we call?\n",
            ),
        ]
    return found


def new_price(firm: Firm, number: int) -> tuple[str, int]:
    """The part whose price a vendor's mail changes, and its new price."""
    vendor = firm.vendors[number + 3]
    part = ("sensor", "valve", "gasket")[number]
    return part, vendor.prices[part] + 3 + number


def _new_prices(firm: Firm, number: int) -> str:
    part, price = new_price(firm, number)
    prices = {**firm.vendors[number + 3].prices, part: price}
    return "".join(f"{line}\n" for line in ("part,price", *(f"{name},{value}" for name, value in prices.items())))


def lines(firm: Firm) -> list[Line]:
    """All that was written in the chat, oldest first."""
    found = [Line("", "general", "eva", "Good morning!"), Line("", "general", "bob", "Morning, Eva.", answers=1)]
    for number in range(TRIES):
        vendor = firm.vendors[number + 2]
        meeting = firm.meetings[2 + 6 * number]
        found += [
            Line(
                f"notice-{number}", "purchasing", "ann", f"How long is the notice in the contract with {vendor.name}?"
            ),
            Line(
                f"move-{number}",
                "general",
                "bob",
                f"The {meeting.title} of {meeting.start:%Y-%m-%d %H:%M} has to move to 17:00 that day.",
            ),
            Line(
                f"figures-{number}",
                "board",
                "eva",
                f"I need the {('North', 'East', 'West')[number]} sales of all quarters.",
            ),
        ]
    for number, (what, who) in enumerate(
        (("a new crane", "Joe"), ("two more cars", "Mia"), ("a stand at the fair", "Eva"))
    ):
        root = sum(line.channel == "board" for line in found) + 1
        found += [
            Line(f"minutes-{number}", "board", "joe", f"Shall we pay for {what}?"),
            Line("", "board", "eva", "Yes, from the spring budget.", answers=root),
            Line("", "board", "ann", f"Agreed. {who} orders it by the end of March.", answers=root),
        ]
    return found
