"""The process that reads documents for another: it may crash, hang or run out of memory over a hostile one.

Its standard input is a socket. Each message is one JSON line with the open document beside it as a descriptor; the
answer is one JSON line.
"""

import json
import os
import socket
import sys
from dataclasses import asdict

from seatrial_sandbox.documents.extract import MAX_FILE_BYTES, Extract, extract, media_type
from seatrial_sandbox.limits import Limits

_LIMITS = Limits(memory_mb=1024, file_mb=64, open_files=64)


def main() -> None:
    """Answer until the other side hangs up."""
    _LIMITS.apply(count_processes=False)
    sys.stdout = sys.stderr  # a chatty library must not answer for us
    with socket.socket(fileno=0) as connection:
        while True:
            message, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
            if not message:
                return
            request = json.loads(message)
            with os.fdopen(descriptors[0], "rb") as document:
                data = document.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                found = Extract(media_type(request["name"]), error=f"larger than {MAX_FILE_BYTES} bytes")
            else:
                found = extract(request["name"], data, request["max_bytes"])
            connection.sendall(json.dumps(asdict(found)).encode() + b"\n")


if __name__ == "__main__":
    main()
