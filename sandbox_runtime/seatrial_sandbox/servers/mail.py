"""MCP server `mail`: read, search and send the mail that lies in the workspace's folder `mail`."""

import mimetypes
from email.message import EmailMessage
from email.utils import getaddresses
from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from seatrial_sandbox.mailbox_files import Mail, MailStore, addresses
from seatrial_sandbox.office_files import replace_file
from seatrial_sandbox.tool_server import ToolServer
from seatrial_sandbox.workspace import Workspace

MAX_ATTACHMENT_BYTES = 10 * 1024 * 1024
"""Largest file that is attached."""

_Folder = Annotated[str, Field(description="Folder, as list_folders shows it.")]
_Id = Annotated[str, Field(description="Id of a mail, such as 'Inbox/3'.")]
_People = Annotated[list[str], Field(description="Addresses, such as 'kim@acme.example'.", min_length=1)]
_Copies = Annotated[list[str], Field(description="Addresses that get a copy.")]
_Body = Annotated[str, Field(description="What the mail says, as plain text.")]
_Files = Annotated[list[str], Field(description="Files of the workspace to attach.")]


class MailTools:
    """The tools of the server."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._store = MailStore(workspace)

    def list_folders(self) -> str:
        """List the folders with the number of their mails, and whose mail it is."""
        lines = [f"mail of {self._store.owner}"]
        lines += [f"{name}: {len(self._store.mails(name))} mails" for name in self._store.folders()]
        return "\n".join(lines)

    def list_mails(
        self,
        folder: _Folder = "Inbox",
        count: Annotated[int, Field(description="How many.", ge=1, le=500)] = 50,
        skip: Annotated[int, Field(description="How many of the newest to leave out.", ge=0)] = 0,
    ) -> str:
        """List the mails of a folder, newest first: id, date, sender, recipients and subject."""
        mails = sorted(self._store.mails(folder), key=lambda mail: mail.date, reverse=True)
        more = len(mails) - skip - count
        lines = [_line(mail) for mail in mails[skip : skip + count]]
        return "\n".join([*lines, *([f"[{more} more mails; skip={skip + count} shows them]"] if more > 0 else [])])

    def read_mail(self, mail_id: _Id) -> str:
        """Read a mail: its headers, what it says, and the names of what is attached."""
        mail = self._store.find(mail_id)
        lines = [
            f"{name}: {mail.header(name)}" for name in ("From", "To", "Cc", "Date", "Subject") if mail.header(name)
        ]
        lines += [
            f"Attachment: {part.get_filename() or '(no name)'} ({part.get_content_type()})" for part in mail.attachments
        ]
        return "\n".join([*lines, "", mail.body.strip() or "(no text)"])

    def search_mails(
        self,
        query: Annotated[str, Field(description="Text to find in subject and body; case does not matter.")] = "",
        sender: Annotated[str, Field(description="Part of the sender's name or address.")] = "",
        folder: Annotated[str | None, Field(description="Folder to search; all of them if left out.")] = None,
    ) -> str:
        """Find mails, newest first."""
        if not query and not sender:
            raise ToolError("give a query, a sender, or both")
        folders = [folder] if folder is not None else list(self._store.folders())
        mails = [mail for name in folders for mail in self._store.mails(name)]
        found = [
            mail
            for mail in mails
            if query.lower() in f"{mail.header('Subject')}\n{mail.body}".lower()
            and sender.lower() in mail.header("From").lower()
        ]
        found.sort(key=lambda mail: mail.date, reverse=True)
        return "\n".join(map(_line, found)) or "no mail matches"

    def send_mail(
        self,
        to: _People,
        subject: Annotated[str, Field(description="Subject, one line.")],
        body: _Body,
        cc: _Copies = [],  # noqa: B006  never changed; a default that the schema shows
        attachments: _Files = [],  # noqa: B006  as above
    ) -> str:
        """Send a new mail."""
        return self._send(subject, body, to, cc, self._attached(attachments))

    def reply(self, mail_id: _Id, body: _Body, attachments: _Files = []) -> str:  # noqa: B006  as above
        """Answer the sender of a mail; what was answered is quoted below."""
        mail = self._store.find(mail_id)
        return self._reply(mail, body, _people(mail, "Reply-To") or _people(mail, "From"), [], attachments)

    def reply_all(self, mail_id: _Id, body: _Body, attachments: _Files = []) -> str:  # noqa: B006  as above
        """Answer the sender and everybody else who got a mail."""
        mail = self._store.find(mail_id)
        own = self._store.owner.addr_spec.lower()
        to = _people(mail, "Reply-To") or _people(mail, "From")
        seen = {own, *(address.lower() for address in to)}
        cc = [address for address in _people(mail, "To", "Cc") if address.lower() not in seen]
        return self._reply(mail, body, to, cc, attachments)

    def forward(self, mail_id: _Id, to: _People, body: _Body = "") -> str:
        """Pass a mail on, with what is attached to it."""
        mail = self._store.find(mail_id)
        head = "\n".join(f"{name}: {mail.header(name)}" for name in ("From", "Date", "Subject", "To"))
        text = f"{body}\n\n---------- Forwarded message ----------\n{head}\n\n{mail.body}".lstrip()
        return self._send(_prefixed("Fwd: ", mail.header("Subject")), text, to, [], mail.attachments)

    def save_attachment(
        self,
        mail_id: _Id,
        name: Annotated[str, Field(description="Name of the attachment, as read_mail shows it.")],
        path: Annotated[str, Field(description="File to write, relative to the workspace.")],
    ) -> str:
        """Write an attachment to a file of the workspace."""
        attached = {part.get_filename() or "(no name)": part for part in self._store.find(mail_id).attachments}
        if name not in attached:
            raise ToolError(f"{mail_id} has no attachment {name!r}; it has: {', '.join(attached) or 'none'}")
        file = self._workspace.resolve(path)
        if file.is_dir():
            raise ToolError(f"{path!r} is a folder; name a file in it")
        data = _data(attached[name])
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, data)
        return f"wrote {len(data)} bytes to {self._workspace.show(file)}"

    def _reply(self, mail: Mail, body: str, to: list[str], cc: list[str], attachments: list[str]) -> str:
        quoted = "\n".join(f"> {line}" for line in mail.body.splitlines())
        text = f"{body}\n\n{mail.header('From')} wrote on {mail.date:%Y-%m-%d %H:%M}:\n{quoted}\n"
        message = self._message(_prefixed("Re: ", mail.header("Subject")), text, to, cc, self._attached(attachments))
        if known := mail.header("Message-ID"):
            message["In-Reply-To"] = known
            message["References"] = f"{mail.header('References')} {known}".strip()
        return self._sent(message)

    def _send(self, subject: str, body: str, to: list[str], cc: list[str], attached: list[EmailMessage]) -> str:
        return self._sent(self._message(subject, body, to, cc, attached))

    def _sent(self, message: EmailMessage) -> str:
        mail_id = self._store.send(message)
        people = ", ".join(f"{message[name]}" for name in ("To", "Cc") if message[name])
        return f"sent {mail_id} to {people}: {message['Subject']}"

    @staticmethod
    def _message(subject: str, body: str, to: list[str], cc: list[str], attached: list[EmailMessage]) -> EmailMessage:
        message = EmailMessage()
        if "\n" in subject or "\r" in subject:
            raise ToolError("the subject has several lines; write one")
        if not to:
            raise ToolError("the mail says nobody whom to answer; use send_mail")
        message["To"] = ", ".join(addresses(to))
        if cc:
            message["Cc"] = ", ".join(addresses(cc))
        message["Subject"] = subject
        message.set_content(body.encode(errors="replace").decode())
        for part in attached:
            main, _, sub = part.get_content_type().partition("/")
            message.add_attachment(_data(part), maintype=main, subtype=sub, filename=part.get_filename())
        return message

    def _attached(self, paths: list[str]) -> list[EmailMessage]:
        parts = []
        for path in paths:
            file = self._workspace.file(path)
            if file.stat().st_size > MAX_ATTACHMENT_BYTES:
                raise ToolError(f"{path!r} is larger than {MAX_ATTACHMENT_BYTES} bytes, too large to attach")
            part = EmailMessage()
            main, _, sub = (mimetypes.guess_type(file.name)[0] or "application/octet-stream").partition("/")
            part.set_content(file.read_bytes(), main, sub, filename=file.name)
            parts.append(part)
        return parts


def build(workspace: Workspace) -> ToolServer:
    """The server `mail` over a workspace."""
    server = ToolServer("mail", "Reads, searches and sends mail.")
    tools = MailTools(workspace)
    server.expose(tools.list_mails, advice="ask for fewer mails", is_apart=True)
    for tool in (
        tools.list_folders,
        tools.read_mail,
        tools.search_mails,
        tools.send_mail,
        tools.reply,
        tools.reply_all,
        tools.forward,
        tools.save_attachment,
    ):
        server.expose(tool, is_apart=True)
    return server


def _line(mail: Mail) -> str:
    attached = f" [{len(mail.attachments)} attached]" if mail.attachments else ""
    facts = (f"{mail.date:%Y-%m-%d %H:%M}", mail.header("From"), f"to {mail.header('To')}", mail.header("Subject"))
    return f"{mail.id} | {' | '.join(facts)}{attached}"


def _people(mail: Mail, *headers: str) -> list[str]:
    return [spec for _, spec in getaddresses([mail.header(name) for name in headers]) if spec]


def _prefixed(prefix: str, subject: str) -> str:
    return subject if subject.lower().startswith(prefix.lower()) else prefix + subject


def _data(part: EmailMessage) -> bytes:
    content = part.get_content()
    match content:
        case bytes():
            return content
        case str():
            return content.encode(errors="replace")
        case _:
            return bytes(content.as_bytes())
