"""Brings the files of a task into its server, and then has the server mount the tools."""

import io
import sys
import tarfile
import urllib.request
from pathlib import Path

_SERVER = "http://127.0.0.1:8000"
_FORM = b'--files\r\nContent-Disposition: form-data; name="archive"; filename="files.tar.gz"\r\n\r\n%b\r\n--files--\r\n'


def post(path: str, content: bytes, content_type: str) -> None:
    """Send something to the server; an answer that is an error is raised."""
    request = urllib.request.Request(f"{_SERVER}{path}", content, {"Content-Type": content_type})  # noqa: S310  ours
    urllib.request.urlopen(request, timeout=300).close()  # noqa: S310


packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:gz") as tar:
    for entry in Path("snapshots", sys.argv[1], "filesystem").iterdir():
        tar.add(entry, entry.name)
form = "multipart/form-data; boundary=files"
post("/data/populate?subsystem=filesystem", _FORM % packed.getvalue(), form)
post("/apps", Path("apps.json").read_bytes(), "application/json")
