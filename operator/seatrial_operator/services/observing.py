"""Looking at a run: what the watches told, what the API server says, and what the driver answers."""

import base64
from dataclasses import dataclass, field

import structlog

from seatrial_api.clock import Clock
from seatrial_api.conditions import RunCondition
from seatrial_api.pods import RUN_LABEL
from seatrial_api.progress import Progress
from seatrial_api.status import Endpoints
from seatrial_operator.config import OperatorConfig
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.resources import PODS, RAY_JOBS, RLRUNS, SECRETS, ObjectKey
from seatrial_operator.manifests.secret import TOKEN_KEY
from seatrial_operator.manifests.storage import report_address, storage_of
from seatrial_operator.plan.draft import find
from seatrial_operator.plan.observed import JOB_RUNS, DriverSeen, JobSeen, Observed, RunObject, Silent
from seatrial_operator.services.drivers import DriverAddress, DriverClient, DriverSilentError
from seatrial_operator.services.run_store import RunStore
from seatrial_operator.services.validation import missing_references

log = structlog.get_logger(__name__)

_DASHBOARD_PORT = 8265


@dataclass
class Contact:
    """The driver of one attempt, as this process knows it; all of it can be found again."""

    attempt: str
    """Name of the attempt's RayJob and Secret."""
    token: str | None = None
    """The token of its Secret; none while there is no Secret."""
    silent_since: float | None = None
    """When the driver first did not answer; none if it answered last time."""
    cluster: str | None = None
    """RayCluster that it was asked in last; a queue that takes nodes and gives others makes a new one."""
    last_words: Progress | None = None
    """What the driver told when it had ended: it goes once it was heard, and there is no asking again."""
    told: Progress | None = None
    """What the driver answered last; none if it did not."""


@dataclass
class RunObserver:
    """Looks at runs."""

    client: KubeClient
    drivers: DriverClient
    store: RunStore
    config: OperatorConfig
    clock: Clock
    _contacts: dict[ObjectKey, Contact] = field(default_factory=dict)

    async def find_run(self, key: ObjectKey) -> RunObject | None:
        """The run as the API server has it now."""
        item = await self.client.find(RLRUNS, key.namespace, key.name)
        return None if item is None else self.store.keep_run(key, item)

    async def observe(self, key: ObjectKey, run: RunObject, *, live: bool) -> Observed:
        """All that belongs to a run; live, it is asked of the API server instead of the store."""
        if live:
            labels = {RUN_LABEL: key.name}
            self.store.replace_jobs(key, await self.client.list(RAY_JOBS, key.namespace, labels))
            self.store.replace_pods(key, await self.client.list(PODS, key.namespace, labels))
        seen = Observed(jobs=self.store.jobs(key, run.uid), pods=self.store.pods(key), is_live=live)
        missing = () if self._is_accepted(run) else await missing_references(self.client, run, self.config)
        job = seen.job(run.status.segment, run.status.attempt) if run.status.current else None
        contact = await self._contact(key, job) if job is not None else None
        return Observed(
            jobs=seen.jobs,
            pods=seen.pods,
            driver=await self._ask(contact, key, job) if contact is not None and job is not None else None,
            has_secret=contact is not None and contact.token is not None,
            missing=missing,
            is_live=live,
        )

    def address(self, key: ObjectKey, run: RunObject) -> DriverAddress | None:
        """Where the driver of the current attempt answers; none if nobody can yet."""
        job = next((j for j in self.store.jobs(key, run.uid) if self._is_current(run, j)), None)
        contact = self._contacts.get(key)
        if job is None or job.cluster is None or contact is None or contact.token is None:
            return None
        return DriverAddress(self._url(key, job.cluster), contact.token)

    def told(self, key: ObjectKey) -> Progress | None:
        """What the run's driver answered when it was asked last; none if it did not."""
        contact = self._contacts.get(key)
        return None if contact is None else contact.told

    def endpoints(self, key: ObjectKey, run: RunObject, seen: Observed) -> Endpoints | None:
        """Addresses of the current attempt's cluster."""
        job = seen.job(run.status.segment, run.status.attempt) if run.status.current else None
        if job is None or job.cluster is None:
            return None
        url = self._url(key, job.cluster)
        return Endpoints(
            dashboard=f"http://{job.cluster}-head-svc.{key.namespace}.svc:{_DASHBOARD_PORT}",
            progress=f"{url}/v1/progress",
            metrics=f"{url}/metrics",
            report=report_address(run.run, run.uid, storage_of(run.spec, self.config)),
        )

    def forget(self, key: ObjectKey) -> None:
        """The run is gone."""
        self._contacts.pop(key, None)

    def _is_current(self, run: RunObject, job: JobSeen) -> bool:
        return job.is_ours and (job.segment, job.attempt) == (run.status.segment, run.status.attempt)

    def _is_accepted(self, run: RunObject) -> bool:
        accepted = find(run.status, RunCondition.ACCEPTED)
        return accepted is not None and accepted.status == "True" and accepted.observed_generation == run.generation

    async def _contact(self, key: ObjectKey, job: JobSeen) -> Contact:
        """What is known of an attempt's driver; its token is read once."""
        contact = self._contacts.get(key)
        if contact is None or contact.attempt != job.name:
            contact = self._contacts[key] = Contact(job.name)
        if contact.token is None:
            secret = await self.client.find(SECRETS, key.namespace, job.name)
            if secret is not None:
                contact.token = base64.b64decode(secret["data"][TOKEN_KEY]).decode()
        return contact

    async def _ask(self, contact: Contact, key: ObjectKey, job: JobSeen) -> DriverSeen:
        if job.state not in JOB_RUNS or job.is_suspended or job.cluster is None or contact.token is None:
            return None
        if contact.cluster != job.cluster:
            contact.cluster, contact.last_words, contact.silent_since = job.cluster, None, None
        if contact.last_words is not None:
            return contact.last_words
        try:
            told = await self.drivers.progress(DriverAddress(self._url(key, job.cluster), contact.token))
        except DriverSilentError as exc:
            now = self.clock.now()
            contact.silent_since = now if contact.silent_since is None else contact.silent_since
            contact.told = None
            log.debug("the driver does not answer", error=str(exc))
            return Silent(now - contact.silent_since, str(exc))
        contact.silent_since, contact.told = None, told
        if told.ended is not None:
            contact.last_words = told
        return told

    def _url(self, key: ObjectKey, cluster: str) -> str:
        return self.config.progress_url.format(cluster=cluster, namespace=key.namespace)
