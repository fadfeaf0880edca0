"""Mailboxes as folders of a workspace: `mail/Inbox.mbox`, or a Maildir `mail/Inbox/`.

    mail/account.json   {"name": "Kim Vogel", "address": "kim@acme.example"}: whose mail it is
    mail/Inbox.mbox     one file per folder, or
    mail/Inbox/cur/     one file per mail

Nothing here knows today's date: a new mail is a minute younger than the youngest that is there, so that the same calls
always leave the same files.
"""

import json
import mailbox
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from email.parser import BytesParser
from email.utils import format_datetime, parseaddr
from pathlib import Path

from mcp.server.mcpserver.exceptions import ToolError

from seatrial_sandbox.office_files import MAX_FILE_BYTES, replace_file
from seatrial_sandbox.workspace import Workspace

FOLDER = "mail"
"""Where the mail lies in a workspace."""
_MBOX = ".mbox"
_FROM_LINE = re.compile(rb"^(>*From )", re.MULTILINE)
_MANGLED = re.compile(rb"^>(>*From )", re.MULTILINE)
"""What a line that begins like a new mail was made into."""
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail and where it lies."""

    id: str
    """Folder and number, from 1: `Inbox/3`."""
    message: EmailMessage

    @property
    def date(self) -> datetime:
        """When it was sent; the world's beginning where it does not say."""
        header = self.message["Date"]
        moment = getattr(header, "datetime", None)
        if not isinstance(moment, datetime):
            return _EPOCH
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def header(self, name: str) -> str:
        """A header as text, in one line; empty if there is none."""
        return " ".join(str(self.message[name] or "").split())

    @property
    def body(self) -> str:
        """What it says, as text."""
        part = self.message.get_body(("plain", "html"))
        if part is None:
            return ""
        text = str(part.get_content())
        return _without_tags(text) if part.get_content_subtype() == "html" else text

    @property
    def attachments(self) -> list[EmailMessage]:
        """What came with it."""
        return [part for part in self.message.iter_attachments() if isinstance(part, EmailMessage)]


class MailStore:
    """The mail of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    @property
    def owner(self) -> Address:
        """Whose mail it is."""
        try:
            file = self._workspace.file(f"{FOLDER}/account.json")
            facts = json.loads(file.read_bytes()[:10_000])
            return Address(facts["name"], addr_spec=facts["address"])
        except (ToolError, ValueError, KeyError, TypeError, IndexError):
            return Address("Agent", addr_spec="agent@localhost.example")

    def folders(self) -> dict[str, Path]:
        """Every folder's file, or folder of files, by its name."""
        root = self._workspace.folder(FOLDER)
        found = {}
        for entry in sorted(root.iterdir()):
            if entry.is_symlink():
                continue
            if entry.suffix == _MBOX and entry.is_file():
                found[entry.stem] = entry
            elif (entry / "cur").is_dir():
                found[entry.name] = entry
        return found

    def mails(self, folder: str) -> list[Mail]:
        """The mails of a folder, in the order of their numbers.

        Raises:
            ToolError: If there is no such folder, or it is too large.
        """
        folders = self.folders()
        if folder not in folders:
            raise ToolError(f"there is no folder {folder!r}; the folders are: {', '.join(folders) or 'none'}")
        parse = BytesParser(_class=EmailMessage, policy=policy.default).parsebytes
        return [
            Mail(f"{folder}/{number}", parse(data)) for number, data in enumerate(self._contents(folders[folder]), 1)
        ]

    def find(self, mail_id: str) -> Mail:
        """The mail of an id.

        Raises:
            ToolError: If there is none.
        """
        folder, _, number = mail_id.rpartition("/")
        if not folder or not number.isdecimal():
            raise ToolError(f"{mail_id!r} is no id; ids look like 'Inbox/3', and list_mails shows them")
        mails = self.mails(folder)
        if not 1 <= int(number) <= len(mails):
            raise ToolError(f"there is no mail {mail_id}; {folder} has {len(mails)}")
        return mails[int(number) - 1]

    def send(self, message: EmailMessage) -> str:
        """Date a mail and put it into the folder `Sent`; returns its id there."""
        folders = self.folders()
        newest = max((mail.date for folder in folders for mail in self.mails(folder)), default=_EPOCH)
        number = len(self.mails("Sent")) + 1 if "Sent" in folders else 1
        owner = self.owner
        message["From"] = owner
        message["Date"] = format_datetime(newest + timedelta(minutes=1))
        message["Message-ID"] = f"<sent-{number}@{owner.domain}>"
        place = folders.get("Sent", self._workspace.resolve(f"{FOLDER}/Sent{_MBOX}"))
        for index, part in enumerate(message.walk()):
            if part.is_multipart():
                part.set_boundary(f"=-part-{number}-{index}")  # else a random one
        data = message.as_bytes(policy=policy.default)
        if place.is_dir():
            replace_file(place / "cur" / f"{number:08d}:2,S", data)
        else:
            before = place.read_bytes() if place.exists() else b""
            start = f"From {owner.addr_spec} {newest:%a %b %d %H:%M:%S %Y}\n".encode()
            replace_file(place, before + start + _FROM_LINE.sub(rb">\1", data).rstrip(b"\n") + b"\n\n")
        return f"Sent/{number}"

    def _contents(self, place: Path) -> Iterator[bytes]:
        if place.is_file():
            if place.stat().st_size > MAX_FILE_BYTES:
                raise ToolError(f"the folder {place.stem!r} is too large to open")
            with closing(mailbox.mbox(place, create=False)) as box:
                yield from (_MANGLED.sub(rb"\1", box.get_bytes(key)) for key in box.iterkeys())
            return
        files = [file for part in ("cur", "new") for file in (place / part).glob("*") if not file.is_symlink()]
        if sum(file.stat().st_size for file in files) > MAX_FILE_BYTES:
            raise ToolError(f"the folder {place.name!r} is too large to open")
        yield from (file.read_bytes() for file in sorted(files, key=lambda file: file.name) if file.is_file())


def addresses(given: list[str]) -> list[str]:
    """Addresses that a model wrote, checked.

    Raises:
        ToolError: If one is none.
    """
    for address in given:
        name, spec = parseaddr(address)
        try:
            Address(name, addr_spec=spec)
            is_good = bool(spec) and "\n" not in address
        except (ValueError, IndexError, AttributeError):
            is_good = False
        if not is_good:
            raise ToolError(f"{address!r} is no address; write 'kim@acme.example' or 'Kim <kim@acme.example>'")
    return given


def _without_tags(text: str) -> str:
    """What a page of HTML says."""
    import html  # noqa: PLC0415  seldom needed

    text = re.sub(r"(?is)<(script|style)\b.*?</\1>", "", text)
    text = re.sub(r"(?i)<(br|/p|/div|/tr|/li)\b[^>]*>", "\n", text)
    return html.unescape(re.sub(r"<[^<>]*>", "", text)).strip()
