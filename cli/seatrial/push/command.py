"""The course of a push: archive, credentials, blobs, manifest, and a line about it."""

from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from seatrial.oci_archive import OciArchive
from seatrial.push.credentials import find_credentials
from seatrial.push.image import Pushed, archive_tag, num_bytes, push_archive
from seatrial.push.session import RegistrySession
from seatrial.push.upload import Uploader
from seatrial_api.errors import InvalidInputError, TransientError
from seatrial_operator.registry.credentials import Credentials
from seatrial_operator.registry.errors import RegistryError
from seatrial_operator.registry.reference import Reference


@dataclass(frozen=True, slots=True)
class PushOrder:
    """What is to be pushed."""

    archive: Path
    """An OCI archive."""
    target: str
    """Repository with registry, and a tag unless the archive names one."""
    credentials: Credentials | None = None
    """Name and password; Docker's configuration is asked if empty."""
    is_plain: bool = False
    """Whether the registry is spoken to without TLS."""
    piece_bytes: int = 0
    """Size of pieces of blobs; 0 sends each in one."""


async def push(order: PushOrder, console: Console) -> tuple[Reference, Pushed]:
    """Push an image; where it is now, and what was sent.

    Raises:
        InvalidInputError: if the archive, the address, the credentials or their rights have to be changed.
        RegistryUnavailableError: if the registry cannot be reached, or fails again and again.
    """
    with OciArchive.opened(order.archive) as archive:
        reference = _target(order.target, archive_tag(archive))
        try:
            credentials = order.credentials or await find_credentials(reference)
            return reference, await _push(archive, reference, credentials, order, console)
        except TransientError:
            raise
        except RegistryError as error:
            raise InvalidInputError(str(error)) from error


async def _push(
    archive: OciArchive, reference: Reference, credentials: Credentials | None, order: PushOrder, console: Console
) -> Pushed:
    columns = (TextColumn("pushing"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("pushing", total=num_bytes(archive))
        async with aiohttp.ClientSession(trust_env=True) as http:
            session = RegistrySession(http, reference, credentials, order.is_plain)
            uploader = Uploader(session, order.piece_bytes, lambda sent: progress.advance(bar, sent))
            return await push_archive(archive, uploader, reference.tag or "latest")


def _target(target: str, tag: str | None) -> Reference:
    if "@" in target or "://" in target:
        raise InvalidInputError(f"{target} is no repository to push to; write it as registry/name or registry/name:tag")
    reference = Reference.parse(target)
    has_tag = ":" in target.rpartition("/")[2]
    return reference if has_tag or not tag else replace(reference, tag=tag)
