"""The first lesson: repeat a short list.

A model that has never copied a word cannot pass on what a tool has told it. Every word that the office may ever
ask it to pass on has to occur here, since one that is missing can't be copied later.
"""

import random

from office.kinds import FUNCTIONS
from office.vocabulary import CITIES, COLUMNS, ITEMS, MONTHS, PEOPLE, REPLIES, STATUSES, TEAMS, VENDORS
from office.world import BUDGET, INVOICES, ORDERS, STAFF, STOCK, VENDOR_LIST

_PATHS = (INVOICES, VENDOR_LIST, BUDGET, STOCK, ORDERS, STAFF)
_WORDS = (
    *ITEMS,
    *PEOPLE,
    *CITIES,
    *VENDORS,
    *TEAMS,
    *STATUSES,
    *COLUMNS,
    *FUNCTIONS,
    *_PATHS,
    *(f"outbox/{reply}" for reply in REPLIES),
    *(f"count_{month}.csv" for month in MONTHS),
    *(f"notes/{person}.txt" for person in PEOPLE),
)


def draw_list(rng: random.Random) -> tuple[str, str]:
    """A list, and the text that repeats it."""
    entries = [_entry(rng) for _ in range(rng.randint(8, 14))]
    text = ", ".join(entries)
    return text + "\n", text + "\n"


def _entry(rng: random.Random) -> str:
    match rng.randrange(4):
        case 0:
            return str(rng.choice([rng.randint(2, 99), rng.randint(100, 999), rng.randint(1000, 9999)]))
        case 1:
            return f"{rng.choice(['INV', 'ORD', *'ABCDEFGH'])}-{rng.randint(10, 99)}"
        case _:
            return rng.choice(_WORDS)
