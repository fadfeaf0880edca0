"""Ports that a process is told instead of choosing itself."""

import socket


def free_port() -> int:
    """A port that nobody listens on; another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
