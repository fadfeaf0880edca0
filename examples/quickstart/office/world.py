"""One office: sheets, notes and folders drawn from a seed, and written out as real files."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from office.vocabulary import CITIES, ITEMS, MONTHS, PEOPLE, STATUSES, TEAMS, VENDORS
from office.xlsx import xlsx_bytes

INVOICES = "finance/invoices.csv"
VENDOR_LIST = "finance/vendors.csv"
BUDGET = "finance/budget.xlsx"
STOCK = "operations/stock.csv"
ORDERS = "operations/orders.csv"
STAFF = "operations/staff.xlsx"
COUNTS = "operations/counts"
"""Folder with the one sheet whose name nobody knows by heart: it carries the month of the count."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table whose first column names its rows."""

    path: str
    """Where it lies in the office; the suffix decides between CSV and XLSX."""
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def keys(self) -> list[str]:
        """The first column."""
        return [row[0] for row in self.rows]

    def cell(self, row: str, column: str) -> str:
        """The cell where the first column says `row`."""
        (found,) = (cells for cells in self.rows if cells[0] == row)
        return found[self.header.index(column)]

    def column(self, name: str) -> list[str]:
        """All cells under one header."""
        position = self.header.index(name)
        return [row[position] for row in self.rows]

    def csv(self) -> str:
        """The table as text; no cell needs quoting."""
        return "".join(",".join(cells) + "\n" for cells in (self.header, *self.rows))


@dataclass(frozen=True, slots=True)
class Office:
    """All that an agent finds in its working directory."""

    sheets: dict[str, Sheet]
    """By path."""
    notes: dict[str, str]
    """Text files by path."""
    count_sheet: str
    """Path of the latest stock count."""

    @property
    def paths(self) -> list[str]:
        """Every file."""
        return sorted([*self.sheets, *self.notes])

    def write(self, root: Path) -> None:
        """Lay the office out under `root`."""
        for path in self.paths:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
        for path, text in self.notes.items():
            (root / path).write_text(text)
        for path, sheet in self.sheets.items():
            if path.endswith(".xlsx"):
                (root / path).write_bytes(xlsx_bytes(sheet.header, sheet.rows))
            else:
                (root / path).write_text(sheet.csv())


def make_office(rng: random.Random) -> Office:
    """Draw an office."""

    def amount() -> str:
        return str(rng.randint(102, 989))

    def count() -> str:
        return str(rng.randint(12, 480))

    def codes(prefix: str, count: int) -> list[str]:
        return [f"{prefix}-{number}" for number in rng.sample(range(10, 100), count)]

    vendors = rng.sample(VENDORS, 8)
    people = rng.sample(PEOPLE, 14)
    items = rng.sample(ITEMS, rng.randint(9, 12))
    count_sheet = f"{COUNTS}/count_{rng.choice(MONTHS)}.csv"
    sheets = [
        _sheet(
            INVOICES,
            "invoice vendor amount status",
            codes("INV", rng.randint(8, 12)),
            lambda: [rng.choice(vendors), amount(), rng.choice(STATUSES)],
        ),
        _sheet(
            VENDOR_LIST,
            "vendor contact city discount",
            vendors,
            lambda: [rng.choice(people), rng.choice(CITIES), str(rng.randint(2, 15))],
        ),
        _sheet(
            BUDGET, "team budget spending owner", rng.sample(TEAMS, 6), lambda: [amount(), amount(), rng.choice(people)]
        ),
        _sheet(
            STOCK,
            "item quantity price shelf",
            items,
            lambda: [
                str(rng.randint(12, 480)),
                str(rng.randint(12, 99)),
                f"{rng.choice('ABCDEFGH')}-{rng.randint(10, 60)}",
            ],
        ),
        _sheet(
            ORDERS,
            "order item owner quantity",
            codes("ORD", rng.randint(7, 10)),
            lambda: [rng.choice(items), rng.choice(people[:10]), str(rng.randint(2, 60))],
        ),
        _sheet(
            STAFF,
            "name team city extension",
            people[:10],
            lambda: [rng.choice(TEAMS), rng.choice(CITIES), amount()],
        ),
        _sheet(count_sheet, "item counted", rng.sample(items, 8), lambda: [count()]),
    ]
    return Office({sheet.path: sheet for sheet in sheets}, _notes(rng, people), count_sheet)


def _sheet(path: str, header: str, keys: Iterable[str], cells: Callable[[], list[str]]) -> Sheet:
    return Sheet(path, tuple(header.split()), tuple((key, *cells()) for key in keys))


def _notes(rng: random.Random, people: list[str]) -> dict[str, str]:
    """What lies about in an office and answers no question."""
    chair, keeper, host = rng.sample(people, 3)
    day = rng.choice(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"])
    return {
        "README.txt": (
            "Shared drive.\n"
            "finance/     invoices, vendors and the budget workbook\n"
            "operations/  stock, orders, staff and the stock counts\n"
            "notes/       minutes, house rules and requests by name\n"
            "outbox/      answers go here, one value a file\n"
        ),
        "notes/house_rules.txt": (
            f"1. Answers go to outbox/, the bare value and nothing else.\n"
            f"2. Change only the cell that you were asked to change.\n"
            f"3. New orders go to the end of the sheet. Questions: {keeper}.\n"
        ),
        "notes/minutes.txt": (
            f"Minutes, {day}. Chair: {chair}.\n"
            f"- {keeper} reports that the count of the month is filed under {COUNTS}.\n"
            f"- {host} will show the visitors around on {day}.\n"
        ),
    }
