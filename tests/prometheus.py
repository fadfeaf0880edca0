"""A real Prometheus that scrapes what real processes once exported."""

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, override

import pytest
import yaml

from hack.cluster.layout import ROOT
from seatrial_api.clock import Deadline

RECORDED = ROOT / "tests" / "data" / "metrics"
"""Written by `python -m tests.e2e.record_metrics`."""
SCRAPE_SECONDS = 0.25
_EARLY_SCRAPES = 8
"""Scrapes that get the earlier recording; then the counters move on to the later one."""


def needs(program: str) -> str:
    """Path of one of Prometheus' programs; skips the test if it is not there."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program} (apt-get install prometheus)")
    return found


_TARGET_LABELS = {"pool": {"namespace": "default", "seatrial_dev_pool": "office"}}
"""What the chart's monitors add to the series of a process."""


class PrometheusError(Exception):
    """Prometheus does not come up, or refuses a query."""


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series that an expression has now.

        Raises:
            PrometheusError: if Prometheus refuses it.
        """
        return list(self._get("query", query=expression)["result"])

    def wait_for(self, expression: str) -> None:
        """Wait until an expression has a series."""
        deadline, pause = Deadline.after(180), threading.Event()
        while not self._find(expression):
            deadline.check(f"Prometheus to have {expression}")
            pause.wait(0.1)

    def _find(self, expression: str) -> list[dict[str, Any]]:
        try:
            return self.query(expression)
        except (OSError, PrometheusError):
            return []  # not up yet, or up and still reading its files

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  our own server
                return dict(json.load(answer)["data"])
        except urllib.error.HTTPError as exc:
            raise PrometheusError(exc.read().decode()) from exc


@contextmanager
def replay(folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that has scraped every recording, first the early and then the late one of each process.

    Args:
        folder: For its data.
    """
    program = needs("prometheus")
    jobs = sorted({path.stem.rpartition("-")[0] for path in RECORDED.glob("*.prom")})
    with _recordings() as port:
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_configuration(jobs, port)))
        address = f"127.0.0.1:{free_port()}"
        options = [
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([program, *options], stdout=log, stderr=subprocess.STDOUT)
        try:
            prometheus = Prometheus(f"http://{address}")
            for job in jobs:
                prometheus.wait_for(f'sum_over_time(up{{job="{job}"}}[1m]) >= {3 * _EARLY_SCRAPES}')
            yield prometheus
        finally:
            process.terminate()
            process.wait(30)


def _configuration(jobs: list[str], port: int) -> dict[str, Any]:
    """As the chart's monitors have it: series of a driver say themselves which run they are of."""
    scrapes = [
        {
            "job_name": job,
            "honor_labels": True,
            "metrics_path": f"/{job}",
            "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": _TARGET_LABELS.get(job, {})}],
        }
        for job in jobs
    ]
    interval = f"{SCRAPE_SECONDS * 1000:.0f}ms"
    return {"global": {"scrape_interval": interval, "scrape_timeout": interval}, "scrape_configs": scrapes}


@contextmanager
def _recordings() -> Iterator[int]:
    scrapes: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            job = self.path.strip("/")
            scrapes[job] = scrapes.get(job, 0) + 1
            age = "early" if scrapes[job] <= _EARLY_SCRAPES else "late"
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write((RECORDED / f"{job}-{age}.prom").read_bytes())

        @override
        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
