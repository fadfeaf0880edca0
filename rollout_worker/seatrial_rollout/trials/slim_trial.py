"""Harbor's trial without what nobody reads.

A stock trial hashes the task's files twice (checksum, lock), writes its configuration, lock, log and result to
disk and copies agent logs and artifacts out of the sandbox and back. Per trial that is a few dozen milliseconds
of CPU, and more the larger the task's world; all that this product keeps of a trial is its trajectory. The
overridden methods are private to Harbor, whose version is therefore pinned; a test holds their names.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol, override, runtime_checkable

from harbor.agents.installed.base import BaseInstalledAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.task.config import TaskConfig
from harbor.models.task.file_filter import TaskFileFilter
from harbor.models.task.paths import TaskPaths
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import VerifierEnvironmentMode, resolve_task_verifier_mode
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.tasks.client import TaskDownloadResult
from harbor.trial.hooks import TrialEvent
from harbor.trial.single_step import SingleStepTrial
from harbor.utils.logger import logger

from seatrial_api.finding import Finding
from seatrial_api.outcome import Outcome
from seatrial_rollout.harness.errors import SandboxFailedError
from seatrial_rollout.harness.record import HarnessRecord
from seatrial_rollout.trials.outcomes import root_cause
from seatrial_rollout.trials.verifier import BeginsVerification

_PROBE_SECONDS = 10.0
"""Time in which a living sandbox runs `true`."""


@runtime_checkable
class TellsLosses(Protocol):
    """A sandbox that somebody else watches over."""

    async def why_lost(self) -> str:
        """Why it is gone; empty if it is not, or nobody knows."""
        ...


@runtime_checkable
class TellsFindings(Protocol):
    """A sandbox that looks at what the agent did."""

    @property
    def findings(self) -> Sequence[Finding]:
        """What was remarkable; nothing before verification begins."""
        ...


@runtime_checkable
class BringsBackWork(Protocol):
    """An agent whose work can be graded in another sandbox when its own dies under the verifier."""

    async def bring_back_work(self) -> bool:
        """Have such a sandbox, if its own has died; True if so."""
        ...


class SlimTask(Task):  # type: ignore[misc]  # Harbor is untyped here
    """A task whose files were checked when its set was loaded, and are not walked through again for every trial."""

    @staticmethod
    @override
    def _validate_input_paths(
        config: TaskConfig, paths: TaskPaths, *, file_filter: TaskFileFilter | None = None
    ) -> None:
        pass

    @staticmethod
    @override
    def _validate_tests(config: TaskConfig, paths: TaskPaths, *, file_filter: TaskFileFilter | None = None) -> None:
        pass


class SlimTrial(SingleStepTrial):  # type: ignore[misc]  # Harbor is untyped here
    """A single-step trial that keeps its result, and the error that broke it off, in memory."""

    error: BaseException | None = None
    """The first error, with its causes."""

    def __init__(self, config: TrialConfig, task: SlimTask) -> None:
        download = TaskDownloadResult(path=task.task_dir, download_time_sec=0.0, cached=True)
        super().__init__(config, _task=task, _task_download_result=download)

    @property
    def record(self) -> HarnessRecord | None:
        """The agent's run, if its harness keeps a record."""
        record = getattr(self.agent, "record", None)
        return record if isinstance(record, HarnessRecord) else None

    @property
    def findings(self) -> Sequence[Finding]:
        """What the sandbox's audit found remarkable, if it has one and the agent came to an end."""
        return self.agent_environment.findings if isinstance(self.agent_environment, TellsFindings) else ()

    @property
    def is_verified_in_place(self) -> bool:
        """Whether the verifier runs in the agent's sandbox."""
        return bool(resolve_task_verifier_mode(self.task.config) == VerifierEnvironmentMode.SHARED)

    @override
    def _init_logger(self) -> None:
        self.logger = logger.getChild("trial")

    @override
    def _write_trial_lock(self) -> None:
        return None

    @override
    async def _emit(self, event: TrialEvent) -> None:
        """Nobody subscribes: the timing is in the result."""

    @override
    def _init_result(self) -> None:
        self._result = TrialResult(
            id=self.id,
            trial_name=self.config.trial_name,
            task_name=self.task.name,
            task_id=self.config.task.get_task_id(),
            started_at=self._now(),
            config=self.config,
            task_checksum="",
            trial_uri=self.paths.trial_dir.as_uri(),
            agent_info=self.agent.to_agent_info(),
            source=None,
        )

    @override
    def _record_exception(self, exc: BaseException) -> None:
        self.error = self.error or exc

    @override
    async def _download_agent_logs(self) -> None:
        if isinstance(self.agent, BaseInstalledAgent):  # it tells its story in them
            await super()._download_agent_logs()

    @override
    async def _upload_agent_logs(self) -> None:
        if isinstance(self.agent, BaseInstalledAgent):
            await super()._upload_agent_logs()

    @override
    async def _collect_artifacts(self, *, stop_main_before_sidecars: bool = False) -> None:
        if not self.is_verified_in_place:  # only a verifier elsewhere needs them
            if isinstance(self.agent_environment, BeginsVerification):  # or nobody would look at what the agent did
                await self.agent_environment.begin_verification()
            await super()._collect_artifacts(stop_main_before_sidecars=stop_main_before_sidecars)

    @override
    async def _run_verifier(self) -> None:
        """Grade only what the model is to blame for."""
        record = self.record
        if record is not None and record.outcome.is_infrastructure:
            return
        while True:
            try:
                await super()._run_verifier()
            except Exception:  # whatever it was: if the sandbox has died, that is behind it
                if not isinstance(self.agent, BringsBackWork) or not await self.agent.bring_back_work():
                    raise
            else:
                return

    @override
    async def _recover_outputs(self) -> None:
        """Tell a dead tool server from a dead sandbox, which looks the same from the agent's side; then clean up."""
        if self.error is not None:
            self.error = await _with_its_cause(self.error, self.agent_environment)
        await self._stop_agent_environment()

    @override
    async def _finalize(self) -> None:
        await self._stop_agent_environment()
        self.result.finished_at = self._now()

    @override
    def _scrub_jobs_dir(self) -> None:
        """The folder is removed with all that is in it."""


async def _with_its_cause(error: BaseException, environment: BaseEnvironment) -> BaseException:
    """The error, or the sandbox's death if that is behind it."""
    cause, why = error, ""
    match root_cause(error):
        case Outcome.TOOL_SERVER_FAILED:
            try:
                async with asyncio.timeout(_PROBE_SECONDS):
                    await environment.exec("true")
            except Exception as exc:  # noqa: BLE001  whatever a provider raises for a sandbox that is gone
                cause, why = exc, await _why_lost(environment) or str(error)
        case Outcome.SANDBOX_FAILED:
            why = await _why_lost(environment)
        case _:
            pass
    if not why:
        return error
    died = SandboxFailedError(f"the sandbox died: {why}")
    died.__cause__ = cause
    return died


async def _why_lost(environment: BaseEnvironment) -> str:
    return await environment.why_lost() if isinstance(environment, TellsLosses) else ""
