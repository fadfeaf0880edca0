"""What is true of the firm: drawn from a seed, and the same wherever it is written."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

FIRM = "Halden Instruments"
DOMAIN = "halden.example"
ME = "kim"
"""The clerk for whom the agent works."""
START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
"""A Monday."""
REGIONS = ("North", "South", "East", "West")
QUARTERS = ("Q1", "Q2", "Q3")
PARTS = ("valve", "sensor", "gasket")
_PEOPLE = {
    "kim": ("Kim Vogel", "Office"),
    "ann": ("Ann Lee", "Finance"),
    "bob": ("Bob Reyes", "Operations"),
    "eva": ("Eva Lund", "Sales"),
    "joe": ("Joe Park", "Research"),
    "mia": ("Mia Costa", "Service"),
}
_VENDORS = ("Arden Tools", "Brightwell", "Corvex", "Dunmore Metal", "Elbe Optics", "Farrow Parts")


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody at the firm."""

    id: str
    name: str
    team: str

    @property
    def mail(self) -> str:
        """Address."""
        return f"{self.id}@{DOMAIN}"


@dataclass(frozen=True, slots=True)
class Vendor:
    """A firm that sells to ours."""

    name: str
    notice_days: int
    payment_days: int
    prices: dict[str, int]
    """By part."""

    @property
    def file(self) -> str:
        """Its contract."""
        return f"contracts/{self.name.lower().replace(' ', '_')}.docx"

    @property
    def mail(self) -> str:
        """Address of its accounts."""
        return f"accounts@{self.name.lower().replace(' ', '-')}.example"


@dataclass(frozen=True, slots=True)
class Invoice:
    """A bill of a vendor."""

    number: str
    vendor: str
    part: str
    quantity: int
    amount: int
    status: str
    """`open`, `paid` or `overdue`."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """An event of the clerk's calendar."""

    uid: str
    title: str
    start: datetime
    minutes: int
    people: tuple[str, ...]

    @property
    def end(self) -> datetime:
        """When it ends."""
        return self.start + timedelta(minutes=self.minutes)


@dataclass(frozen=True, slots=True)
class Firm:
    """All of it."""

    people: dict[str, Person]
    vendors: list[Vendor]
    invoices: list[Invoice]
    budgets: dict[str, tuple[int, int]]
    """Budget and spending by team."""
    sales: dict[str, dict[str, int]]
    """By quarter and region."""
    hours: dict[str, dict[str, int]]
    """By month and person."""
    meetings: list[Meeting]

    def vendor(self, name: str) -> Vendor:
        """The vendor of a name."""
        return next(vendor for vendor in self.vendors if vendor.name == name)

    def of(self, vendor: str, status: str) -> list[Invoice]:
        """A vendor's invoices that are in a state."""
        return [bill for bill in self.invoices if bill.vendor == vendor and bill.status == status]


def make_firm(seed: int = 7) -> Firm:
    """The firm of a seed."""
    rng = random.Random(seed)
    people = {key: Person(key, name, team) for key, (name, team) in _PEOPLE.items()}
    vendors = [
        Vendor(
            name,
            notice_days=notice,
            payment_days=rng.choice((10, 14, 21, 45)),
            prices={part: rng.randrange(12, 95) for part in PARTS},
        )
        for name, notice in zip(_VENDORS, rng.sample(range(31, 180), len(_VENDORS)), strict=True)
    ]
    return Firm(
        people,
        vendors,
        _invoices(vendors, rng),
        {person.team: (rng.randrange(400, 900) * 100, rng.randrange(100, 390) * 100) for person in people.values()},
        {quarter: {region: rng.randrange(20_000, 99_000) for region in REGIONS} for quarter in QUARTERS},
        {month: {key: rng.randrange(90, 175) for key in people} for month in ("january", "february")},
        _meetings(),
    )


def _invoices(vendors: list[Vendor], rng: random.Random) -> list[Invoice]:
    """Four bills of every vendor: one overdue, one open, two paid."""
    bills = []
    for vendor in vendors:
        for status in ("overdue", "open", "paid", "paid"):
            part, quantity = rng.choice(PARTS), rng.randrange(3, 40)
            number = f"INV-{1000 + 7 * len(bills) + rng.randrange(5)}"
            bills.append(Invoice(number, vendor.name, part, quantity, vendor.prices[part] * quantity, status))
    return bills


def _meetings() -> list[Meeting]:
    """Three days, each with an hour that is free between nine and four, and no other."""
    found = []
    for day, free in enumerate((11, 14, 10)):
        for hour in range(9, 16):
            if hour != free:
                start = (START + timedelta(days=day)).replace(hour=hour)
                names = ("Planning", "Supplier call", "Review", "Lunch", "Budget round", "Hiring", "Site visit")
                title = names[(hour + day) % len(names)]
                found.append(Meeting(f"meeting-{day}-{hour}", title, start, 60, ("ann", "bob")[: 1 + day % 2]))
    return found
