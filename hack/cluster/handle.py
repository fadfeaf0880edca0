"""What an owner holds: starting a copy, talking to it, ending it."""

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hack.cluster import fake_nodes
from hack.cluster.api_server import ApiServer
from hack.cluster.control_plane import API_SERVER
from hack.cluster.copies import Copy
from hack.cluster.errors import ClusterError, CommandError, StartError
from hack.cluster.layout import BIN, ROOT, Grade, Layout
from hack.cluster.machine import require
from hack.cluster.node import namespaces, registry, runtime
from hack.cluster.startup import ESTABLISHED
from hack.cluster.traces import remove

_PLACE = Path("/var/tmp")  # noqa: S108  our folders in it are private
"""On a disk, since containers' layers are large; with a short name, as those of sockets must be."""
_PREFIX = "seatrial-cluster-"
_COMMAND_SECONDS = 300
_END_SECONDS = 60


class Cluster:
    """A running copy. As a context manager it ends with its block; it also ends with the process that started it."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(folder)
        self._keeper: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, grade: Grade) -> Self:
        """Bring up a copy that ends with this process at the latest.

        Raises:
            MissingPartsError: if this machine lacks something.
            StartError: if the copy does not come up.
        """
        require(grade)
        cluster = cls(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PLACE)))
        cluster.launch(grade, "--owner", str(os.getpid()))
        return cluster

    @classmethod
    def named(cls, name: str) -> Self:
        """The copy that `make cluster` or `up --name` starts, whether or not it runs."""
        return cls(_PLACE / f"{_PREFIX}{name}")

    def launch(self, grade: Grade, *options: str) -> None:
        """Start the keeper in this folder and wait until the copy is ready.

        Raises:
            StartError: if it does not come up.
        """
        self.layout.prepare()
        words = [sys.executable, "-m", "hack.cluster.keeper", str(self.layout.folder), grade, *options]
        with self.layout.log("keeper").open("ab") as log:
            keeper = subprocess.Popen(
                words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        if keeper.stdout is None:
            raise RuntimeError("a pipe was asked for")
        with keeper.stdout:
            line = keeper.stdout.readline()
        self._keeper = keeper
        answer = json.loads(line or "{}")
        if not answer.get("ready"):
            keeper.wait(_END_SECONDS)
            raise StartError(f"the cluster did not come up: {answer.get('error', 'its keeper ended')}")

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, for use from this machine."""
        return self.layout.kubeconfig

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator and return what it wrote.

        Raises:
            CommandError: if it fails, with what it said.
        """
        cache = self.layout.folder / "kubectl"
        options = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={cache}"]
        return _output([str(BIN / "kubectl"), *options, *arguments], ["kubectl", *arguments], stdin)

    def apply(self, *manifests: dict[str, Any]) -> str:
        """Apply objects on the server's side."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        return self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(listed))

    def apply_crds(self, folder: Path) -> None:
        """Apply a folder of CRDs and wait until their kinds are served."""
        self.kubectl("apply", "--server-side", "-f", str(folder))
        self.await_established("-f", str(folder))

    def await_established(self, *crds: str, stdin: str | None = None) -> None:
        """Wait until the kinds of CRDs are served."""
        for condition in ESTABLISHED:
            self.kubectl("wait", f"--for={condition}", "--timeout=180s", *crds, stdin=stdin)

    def kill_api_server(self) -> None:
        """End the API server as a crash does; it is started again at once, and answers a few seconds later."""
        kill = ("kill", "-KILL", self.layout.pid(API_SERVER).read_text())
        init = self._copy().init
        _output(kill if init is None else namespaces.entering(init, *kill), kill, None)

    def fake_nodes(self, count: int, *, cpu: str = "32", memory: str = "256Gi", **resources: str) -> list[str]:
        """Add nodes that KWOK plays and wait until they are ready; beside a real node, they are tainted.

        Args:
            count: how many.
            cpu: of each.
            memory: of each.
            resources: further ones, as `**{"nvidia.com/gpu": "8"}`.
        """
        copy = self._copy()
        taken = set(self.kubectl("get", "nodes", "--output=jsonpath={.items[*].metadata.name}").split())
        names = list(islice((name for number in itertools.count() if (name := f"fake-{number}") not in taken), count))
        capacity = {"cpu": cpu, "memory": memory} | resources
        nodes = [fake_nodes.fake_node(name, capacity, is_tainted=copy.grade is Grade.NODE) for name in names]
        fake_nodes.create(ApiServer(f"https://127.0.0.1:{copy.port}", self.layout.pki), nodes)
        return names

    def run(self, *words: str, stdin: str | None = None) -> str:
        """Run a command inside the node, with the machine's files and the node's network; its folder is `/`.

        Raises:
            CommandError: if it fails, with what it said.
        """
        return _output(self.inside(*words), words, stdin)

    def inside(self, *words: str) -> tuple[str, ...]:
        """The command as one that enters the node first.

        Raises:
            ClusterError: if there is no node.
        """
        copy = self._copy()
        if copy.init is None:
            raise ClusterError(f"a cluster of grade {copy.grade} has no node to run commands in")
        return namespaces.entering(copy.init, *words)

    def load(self, archive: Path) -> None:
        """Make an image of an OCI archive known to the node; pods use it by name, with `imagePullPolicy: Never`."""
        self.run(*runtime.importing(archive.resolve()))

    def push(self, image: str) -> str:
        """Copy an image that the node has into the node's own registry.

        Returns:
            What pods and others inside the node call it there.
        """
        reference = f"{registry.ADDRESS}/{image.partition('/')[2]}"
        for words in runtime.pushing(image, reference):
            self.run(*words)
        return reference

    def log(self, name: str) -> str:
        """Log of one of the cluster's own processes, such as `api-server` or `kubelet`."""
        return self.layout.log(name).read_text(errors="replace")

    def stop(self) -> None:
        """End the copy and wait until nothing of it is left.

        Raises:
            ClusterError: if its keeper does not end.
        """
        copy = self.find()
        if copy is not None:
            _end(copy.keeper)
        if self._keeper is not None:
            self._keeper.wait(_END_SECONDS)
        remove(self.layout)

    def find(self) -> Copy | None:
        """What runs in the folder, or None."""
        return Copy.read(self.layout)

    def _copy(self) -> Copy:
        copy = self.find()
        if copy is None:
            raise ClusterError(f"the cluster in {self.layout.folder} has ended")
        return copy

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _end(keeper: int) -> None:
    try:
        descriptor = os.pidfd_open(keeper)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        ended, _, _ = select.select([descriptor], [], [], _END_SECONDS)
    finally:
        os.close(descriptor)
    if not ended:
        raise ClusterError(f"the cluster's keeper, process {keeper}, did not end within {_END_SECONDS} s")


def _output(words: Sequence[str], told: Sequence[str], stdin: str | None) -> str:
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    if done.returncode != 0:
        raise CommandError(command=told, status=done.returncode, output=done.stderr or done.stdout)
    return done.stdout
