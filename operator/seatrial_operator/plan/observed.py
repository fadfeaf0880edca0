"""What was seen of a run and of all that belongs to it."""

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from seatrial_api.pods import Role
from seatrial_api.progress import Progress
from seatrial_api.rlrun import RLRun, RLRunSpec
from seatrial_api.status import Endpoints, RLRunStatus

RESUME_ANNOTATION = "seatrial.dev/resume"
"""Any new value asks a run that stopped to go on, as `kubectl rollout restart` does with its annotation."""
STAGES_ANNOTATION = "seatrial.dev/stages"
"""On a RayJob: digest of the stages that its driver was asked to run."""

JOB_OVER = frozenset({"Complete", "Failed", "ValidationFailed"})
"""KubeRay's `jobDeploymentStatus` of a RayJob that does no more."""
JOB_RUNS = frozenset({"Running", *JOB_OVER})
"""The same, of a RayJob whose driver was submitted, so that somebody may answer."""


@dataclass(frozen=True)
class RunObject:
    """An RLRun as the API server holds it."""

    run: RLRun
    """Name, namespace, annotations and spec; the status is beside it."""
    uid: str
    generation: int
    resource_version: str
    created_at: datetime
    status: RLRunStatus
    is_deleting: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.run.metadata.name

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.run.metadata.namespace or "default"

    @property
    def spec(self) -> RLRunSpec:
        """What the user wants."""
        return self.run.spec


@dataclass(frozen=True, slots=True)
class JobSeen:
    """The RayJob of an attempt."""

    name: str
    segment: int
    attempt: int
    stages: str
    """Digest of the stages that its driver was asked to run."""
    cluster: str | None
    """Its RayCluster; none before KubeRay named one."""
    state: str
    """`jobDeploymentStatus`; empty before KubeRay looked at it."""
    message: str
    """What KubeRay says about it."""
    is_suspended: bool
    """Whether a queue holds it back."""
    is_deleting: bool
    is_ours: bool = True
    """Whether the run owns it: a run made anew under the same name meets what is left of its namesake."""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod of an attempt."""

    name: str
    uid: str
    segment: int
    attempt: int
    role: str
    cluster: str
    phase: str
    waits_for: str = ""
    """Why it does not run, in the scheduler's or the kubelet's words."""
    is_deleting: bool = False


@dataclass(frozen=True, slots=True)
class Silent:
    """A driver that should answer and does not."""

    seconds: float
    """For how long it has not, since this process began to ask."""
    reason: str


type DriverSeen = Progress | Silent | None
"""What the current attempt's driver answered; none when nobody can answer yet."""


@dataclass(frozen=True)
class Observed:
    """All that was seen at one time."""

    jobs: tuple[JobSeen, ...] = ()
    pods: tuple[PodSeen, ...] = ()
    driver: DriverSeen = None
    has_secret: bool = False
    """Whether the Secret of the current attempt is there; only asked for while it matters."""
    missing: tuple[str, ...] = ()
    """Objects that the spec names and that are not there; only asked for before the spec was accepted."""
    refused: str = ""
    """Why the API server would not make an object of this run a moment ago; empty if it did."""
    is_live: bool = True
    """Whether jobs and pods come from the API server itself and not from what the watches told so far."""

    def job(self, segment: int, attempt: int) -> JobSeen | None:
        """The RayJob of an attempt, which the run owns."""
        ours = (job for job in self.jobs if job.is_ours)
        return next((job for job in ours if (job.segment, job.attempt) == (segment, attempt)), None)

    def head(self, job: JobSeen) -> PodSeen | None:
        """The head pod of an attempt's cluster: the one that is there to stay."""
        heads = [pod for pod in self._heads if pod.cluster == job.cluster]
        return min(heads, key=lambda pod: pod.is_deleting, default=None)

    @cached_property
    def _heads(self) -> tuple[PodSeen, ...]:
        return tuple(pod for pod in self.pods if pod.role == Role.HEAD.value)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the operator waits for what."""

    poll_seconds: float = 5.0
    resync_seconds: float = 300.0
    silence_seconds: float = 900.0
    stop_grace_seconds: float = 600.0
    unreachable_seconds: float = 30.0
    """Silence that is told as such; a shorter one is a hiccup."""
    first_backoff_seconds: float = 10.0
    """Wait before the attempt after one that ended early; it doubles with each in a row."""
    max_backoff_seconds: float = 300.0


@dataclass(frozen=True)
class Situation:
    """Everything that a plan depends on."""

    run: RunObject
    seen: Observed
    now: datetime
    timing: Timing = field(default_factory=Timing)
    problems: tuple[str, ...] = ()
    """What is wrong with the spec: the field, and the way out."""
    links: Endpoints | None = None
    """Addresses of the current attempt's cluster; none before there is one."""
