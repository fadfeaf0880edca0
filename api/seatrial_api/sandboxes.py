"""What broker, sandbox and trial host agree on about a sandbox's pod: labels, annotations, places and the port."""

from pathlib import PurePosixPath

WORLD_LABEL = "seatrial.dev/world"
"""Name of the WorldImage that a sandbox is made from."""
REVISION_LABEL = "seatrial.dev/world-revision"
"""Tells the form of the world; sandboxes of a former one are claimed no more."""
STATE_LABEL = "seatrial.dev/sandbox-state"
"""`warm` until a trial claims it, then `claimed`."""
TRIAL_LABEL = "seatrial.dev/trial"
"""Trial that holds the sandbox."""
RUN_ANNOTATION = "seatrial.dev/claimed-by-run"
"""RLRun of that trial. No label: the labels of a run admit to the run's network."""
CLAIMED_AT_ANNOTATION = "seatrial.dev/claimed-at"
"""When the trial claimed it."""
RESTARTS_ANNOTATION = "seatrial.dev/restarts-at-claim"
"""Restarts of the pod's containers before; one more has lost what the trial did."""

GATEWAY_SERVER = "archipelago"
"""Name of the server that stands for all of an image's own: its tools bring their servers' names along."""
SANDBOX_ROLE = "sandbox"
"""Value of the label `seatrial.dev/role` on sandboxes."""
BROKER_AUDIENCE = "seatrial-broker"
"""Audience of the service account tokens that callers of the broker present."""
BROKER_PORT = 8092
"""Port of the broker's gRPC service."""

RUNTIME_MOUNT = PurePosixPath("/opt/seatrial")
"""Where the sandbox runtime lies, in its own image and in every sandbox: a Python of its own, `sandboxd` and our tool
servers. Nothing of the world's is used for them."""
_PYTHON = (str(RUNTIME_MOUNT / "bin" / "python3"), "-I", "-m")
"""It heeds no variable of the world's, and no module in the folder where it starts."""
SANDBOXD = (*_PYTHON, "seatrial_sandbox.daemon")
"""Command line of `sandboxd`; its environment tells it the rest, see `sandboxd_config`."""
BRING = (*_PYTHON, "seatrial_sandbox.bring")
"""Command line of what copies folders; `SOURCE=TARGET` arguments follow."""
START = (*_PYTHON, "seatrial_sandbox.start")
"""Command line of what becomes the command that follows, once it knows for which task."""
TELL = (*START, "--task")
"""Command line that tells it so, the slug of the task behind it."""
HARNESSES_MOUNT = PurePosixPath("/opt/seatrial-harnesses")
"""Where the agents of others lie, in their own image and in the sandboxes of worlds that want them; their programs are
below `bin`."""
FILES_MOUNT = PurePosixPath("/seatrial")
"""Below it, what is brought into a world before its trials."""
TASK_ARGUMENT = "{task}"
"""Argument of a gateway's command that stands for the slug of the trial's task."""
TASK_FILE = FILES_MOUNT / "task" / "slug"
"""Where that slug is left, as a line, for a gateway that waits for it."""

BROKER_VARIABLE = "SEATRIAL_BROKER"
"""Environment variable of pods that run trials: where the broker answers, as `host:port`."""
RUN_VARIABLE = "SEATRIAL_RUN"
"""Environment variable of such pods with the name of their run, on whose account sandboxes are claimed."""
BROKER_TOKEN_FILE = PurePosixPath("/var/run/secrets/seatrial.dev/broker/token")
"""The pod's token for the broker, which the kubelet renews: it is read for every call."""
BROKER_TOKEN_VARIABLE = "SEATRIAL_BROKER_TOKEN_FILE"  # noqa: S105  a name
"""Environment variable with the path of that token, where it lies elsewhere."""
