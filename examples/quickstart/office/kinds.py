"""The kinds of work in each domain: how a task is drawn, how it is asked for and how it is done well."""

import random
from collections.abc import Callable
from dataclasses import replace

from office.task import Call, Cell, Reply, Row, Task
from office.vocabulary import ITEMS, PEOPLE, REPLIES, STATUSES
from office.world import BUDGET, COUNTS, INVOICES, ORDERS, STAFF, STOCK, VENDOR_LIST, Office, make_office

FUNCTIONS = ("max", "min", "sum")
"""What may be asked of a column."""

_LOOKUP = (
    "Please look up the {column} of {row} in {path} and write it to {out}. Only the value, please.",
    "{who} asks for the {column} of {row}. It is in {path}. Write only the value to {out}.",
    "What is the {column} of {row}? Check {path} and put just the value in {out}. Thanks, {who}",
)
_TOTAL = (
    "Please work out the {function} of the {column} column in {path} and write it to {out}. Only the number, please.",
    "{who} needs the {function} of the {column} column of {path}. Write only the number to {out}.",
    "What is the {function} of the {column} column in {path}? Put just the number in {out}. Thanks, {who}",
)
_HOP = (
    "Please find the {column} of the {link} of {row} and write it to {out}. Start from {path}, then see {then}.",
    "{who} asks for the {column} of the {link} of {row}. See {path} and {then}. Write only the value to {out}.",
    "Who is the {link} of {row} in {path}, and what is their {column} in {then}? Put just the {column} in {out}.",
)
_FIND = (
    "How many of {row} were counted? The latest sheet is in {folder}. Write only the number to {out}.",
    "Please take the counted number of {row} from the sheet in {folder} and put it in {out}. Thanks, {who}",
    "{who} needs the last count of {row}. Look in {folder} for the sheet. Write just the number to {out}.",
)
_MEMO = (
    "Please answer the request in {memo}. Write only the value to {out}.",
    "{who} left a request in {memo}. Look it up and put just the value in {out}.",
    "There is a new request: {memo}. Please write the answer to {out}, only the value.",
)
_REQUEST = (
    "Hello,\nplease send me the {column} of {row}. It is in {path}.\n{who}",
    "Good morning,\nI need the {column} of {row} from {path}.\nThanks, {who}",
)
_UPDATE = (
    "Please set the {column} of {row} in {path} to {value}.",
    "{who} says that the {column} of {row} is {value} now. Please change it in {path}.",
    "Correction for {path}: the {column} of {row} has to be {value}. Thanks, {who}",
)
_APPEND = (
    "Please add an order at the end of {path}: {values}.",
    "New order for {path}, to be added at the end: {values}. Thanks, {who}",
    "{who} has placed an order: {values}. Please add it to the end of {path}.",
)


def make_task(seed: int) -> Task:
    """The task that belongs to a seed; even seeds are finance, odd ones operations."""
    domain = ("finance", "operations")[seed % 2]
    kinds = KINDS[domain]
    rng = random.Random(f"{seed}")
    kind = rng.choice(sorted(kinds))
    return replace(kinds[kind](make_office(rng), rng), domain=domain, kind=kind)


def _text(rng: random.Random, phrasings: tuple[str, ...], *, answer: str = "", **fields: str) -> str:
    """One of the phrasings; whoever asks in it is not the answer."""
    who = rng.choice([person for person in PEOPLE if person != answer])
    return rng.choice(phrasings).format(**{"who": who, **fields}) + "\n"


def _reply_task(office: Office, instruction: str, out: str, value: str, *calls: Call) -> Task:
    """A task whose answer goes to a text file."""
    write = Call("filesystem_write_text_file", {"path": out, "text": value})
    return Task("", "", instruction, office, Reply(out, value), (*calls, write))


def _read(path: str, row: str, column: str) -> Call:
    return Call("sheets_lookup", {"path": path, "row": row, "column": column})


def _out(rng: random.Random) -> str:
    return f"outbox/{rng.choice(REPLIES)}"


def _lookup(office: Office, rng: random.Random, columns: dict[str, tuple[str, ...]]) -> Task:
    """One cell of a sheet that the instruction names."""
    path = rng.choice(sorted(columns))
    column, row, out = rng.choice(columns[path]), rng.choice(office.sheets[path].keys), _out(rng)
    value = office.sheets[path].cell(row, column)
    text = _text(rng, _LOOKUP, answer=value, path=path, row=row, column=column, out=out)
    return _reply_task(office, text, out, value, _read(path, row, column))


def _finance_lookup(office: Office, rng: random.Random) -> Task:
    return _lookup(
        office,
        rng,
        {
            INVOICES: ("vendor", "amount", "status"),
            VENDOR_LIST: ("contact", "city"),
            BUDGET: ("budget", "spending", "owner"),
        },
    )


def _operations_lookup(office: Office, rng: random.Random) -> Task:
    return _lookup(office, rng, {STOCK: ("quantity", "price", "shelf"), STAFF: ("team", "city", "extension")})


def _total(office: Office, rng: random.Random) -> Task:
    """A figure over a whole column."""
    path, column = rng.choice([(INVOICES, "amount"), (BUDGET, "budget"), (BUDGET, "spending")])
    function, out = rng.choice(FUNCTIONS), _out(rng)
    numbers = [int(cell) for cell in office.sheets[path].column(column)]
    value = {"max": max(numbers), "min": min(numbers), "sum": sum(numbers)}[function]
    text = _text(rng, _TOTAL, function=function, path=path, column=column, out=out)
    call = Call("sheets_aggregate", {"path": path, "column": column, "function": function})
    return _reply_task(office, text, out, str(value), call)


def _hop(office: Office, rng: random.Random, path: str, link: str, then: str, columns: tuple[str, ...]) -> Task:
    """One sheet says whom to look for in the next."""
    row, column, out = rng.choice(office.sheets[path].keys), rng.choice(columns), _out(rng)
    linked = office.sheets[path].cell(row, link)
    value = office.sheets[then].cell(linked, column)
    text = _text(rng, _HOP, answer=value, path=path, row=row, link=link, then=then, column=column, out=out)
    return _reply_task(office, text, out, value, _read(path, row, link), _read(then, linked, column))


def _finance_hop(office: Office, rng: random.Random) -> Task:
    return _hop(office, rng, INVOICES, "vendor", VENDOR_LIST, ("contact", "city", "discount"))


def _operations_hop(office: Office, rng: random.Random) -> Task:
    return _hop(office, rng, ORDERS, "owner", STAFF, ("team", "city", "extension"))


def _find(office: Office, rng: random.Random) -> Task:
    """The sheet has to be found first."""
    sheet, out = office.sheets[office.count_sheet], _out(rng)
    row = rng.choice(sheet.keys)
    text = _text(rng, _FIND, row=row, folder=COUNTS, out=out)
    listing = Call("filesystem_list_files", {"path": COUNTS})
    return _reply_task(office, text, out, sheet.cell(row, "counted"), listing, _read(sheet.path, row, "counted"))


def _memo(office: Office, rng: random.Random) -> Task:
    """What is wanted stands in a note."""
    path, column = rng.choice([(STOCK, "quantity"), (STOCK, "price"), (STAFF, "extension"), (STAFF, "city")])
    row, who, out = rng.choice(office.sheets[path].keys), rng.choice(PEOPLE), _out(rng)
    memo = f"notes/{who}.txt"
    office.notes[memo] = _text(rng, _REQUEST, column=column, row=row, path=path, who=who)
    text = _text(rng, _MEMO, memo=memo, out=out, who=who)
    value = office.sheets[path].cell(row, column)
    reading = Call("filesystem_read_text_file", {"path": memo})
    return _reply_task(office, text, out, value, reading, _read(path, row, column))


def _update(office: Office, rng: random.Random) -> Task:
    """One cell has to change."""
    column = rng.choice(["status", "amount"])
    row = rng.choice(office.sheets[INVOICES].keys)
    values = STATUSES if column == "status" else [str(number) for number in range(102, 990)]
    value = rng.choice([value for value in values if value != office.sheets[INVOICES].cell(row, column)])
    text = _text(rng, _UPDATE, path=INVOICES, row=row, column=column, value=value)
    call = Call("sheets_edit_cell", {"path": INVOICES, "row": row, "column": column, "value": value})
    return Task("", "", text, office, Cell(INVOICES, row, column, value), (call,))


def _append(office: Office, rng: random.Random) -> Task:
    """A row has to be added."""
    sheet = office.sheets[ORDERS]
    code = rng.choice([f"ORD-{number}" for number in range(10, 100) if f"ORD-{number}" not in sheet.keys])
    values = (code, rng.choice(ITEMS), rng.choice(PEOPLE), str(rng.randint(2, 60)))
    text = _text(rng, _APPEND, path=ORDERS, values=", ".join(values))
    call = Call("sheets_append_row", {"path": ORDERS, "values": list(values)})
    return Task("", "", text, office, Row(ORDERS, values), (call,))


KINDS: dict[str, dict[str, Callable[[Office, random.Random], Task]]] = {
    "finance": {"lookup": _finance_lookup, "total": _total, "hop": _finance_hop, "update": _update},
    "operations": {
        "lookup": _operations_lookup,
        "find": _find,
        "memo": _memo,
        "hop": _operations_hop,
        "append": _append,
    },
}
"""Every kind of work by domain."""
