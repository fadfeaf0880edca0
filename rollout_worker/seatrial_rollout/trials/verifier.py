"""Runs a task's verifier in the agent's sandbox, in one command and with nothing of the agent's alive."""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, override, runtime_checkable

from harbor.models.task.file_filter import TaskFileFilter
from harbor.models.trial.paths import EnvironmentPaths
from harbor.models.verifier.result import VerifierResult
from harbor.utils.env import resolve_env_vars
from harbor.utils.file_staging import selected_directory
from harbor.verifier.base import BaseVerifier
from harbor.verifier.verifier import AddTestsDirError, DownloadVerifierDirError

from seatrial_rollout.trials.judging import judge_environment
from seatrial_rollout.trials.rewards import VerifierError, parse_rewards

_MAX_REWARD_BYTES = 1 << 20
_SHOWN_OUTPUT_CHARS = 2000
_PATHS = EnvironmentPaths()


@runtime_checkable
class BeginsVerification(Protocol):
    """An environment that can end all that the agent left running."""

    async def begin_verification(self) -> None:
        """End every process; `/tests` and `/logs/verifier` are empty afterwards."""
        ...


@runtime_checkable
class KeepsInitialFiles(Protocol):
    """An environment that may have kept its files as they were before the agent."""

    async def bring_initial(self) -> None:
        """Put them into `/tests/initial`, if it has."""
        ...


class SandboxVerifier(BaseVerifier):  # type: ignore[misc]  # Harbor is untyped here
    """Harbor's verifier of the shared mode, with four differences.

    - The agent's processes are ended first, where the environment can.
    - `/tests` and `/logs/verifier` are emptied, so that nothing the agent planted there is run or read.
    - A missing or unreadable reward says how the script ended and what it printed.
    - The script can ask the run's judge, if it has one; without an answer there is no reward.
    """

    @override
    async def verify(self) -> VerifierResult:
        """Grade what the agent left.

        Raises:
            VerifierError: if the script leaves no reward that can be read.
            AddTestsDirError: if the tests cannot be brought into the sandbox.
            DownloadVerifierDirError: if the result cannot be brought out of it.
            NoVerdictError: if the judge did not answer the script.
        """
        await self._prepare()
        environment = {**self.task.config.verifier.env, **(self.verifier_env or {}), **self.override_env}
        async with judge_environment(self.environment) as judge:
            result = await self.environment.exec(
                command=f"chmod +x {_PATHS.tests_dir}/test.sh; "
                f"{_PATHS.tests_dir}/test.sh > {_PATHS.verifier_dir}/test-stdout.txt 2>&1",
                # The judge's come last, unresolved: a task that passes a key of ours on gets a token instead.
                env={**resolve_env_vars(_without(environment, judge)), **judge} or None,
            )
        folder = await self._fetch()
        try:
            return VerifierResult(rewards=dict(_read_rewards(folder)))
        except VerifierError as exc:
            output = _read(folder / "test-stdout.txt") or ""
            msg = f"{exc}; tests/test.sh exited with status {result.return_code}"
            if output.strip():
                msg += f" and its output ends:\n{output.strip()[-_SHOWN_OUTPUT_CHARS:]}"
            raise VerifierError(msg) from None

    async def _prepare(self) -> None:
        if isinstance(self.environment, BeginsVerification):
            await self.environment.begin_verification()
        else:
            folders = [_PATHS.tests_dir, _PATHS.verifier_dir]
            emptied = await self.environment.empty_dirs(folders, chmod=True)
            if emptied is not None and emptied.return_code != 0:
                raise AddTestsDirError(f"cannot empty /tests and /logs/verifier: {emptied.stderr or emptied.stdout}")
        try:
            with self._included_tests() as folder:
                await self.environment.upload_dir(source_dir=folder, target_dir=str(_PATHS.tests_dir))
            if isinstance(self.environment, KeepsInitialFiles):
                await self.environment.bring_initial()
        except OSError as exc:
            raise AddTestsDirError(f"cannot bring the tests into the sandbox: {exc}") from exc

    @contextmanager
    def _included_tests(self) -> Iterator[Path]:
        """The tests without what a `.harborignore` leaves out."""
        tests: Path = self.task.paths.tests_dir
        if any((folder / TaskFileFilter.IGNORE_FILENAME).exists() for folder in (self.task.task_dir, tests)):
            with selected_directory(self.task.file_filter.select(tests)) as folder:
                yield folder
        else:
            yield tests

    async def _fetch(self) -> Path:
        """The folder on the host that holds what the script wrote."""
        folder: Path = self.trial_paths.verifier_dir
        if not self.environment.is_path_mounted(_PATHS.verifier_dir, folder):
            try:
                await self.environment.download_dir(source_dir=str(_PATHS.verifier_dir), target_dir=folder)
            except OSError as exc:
                raise DownloadVerifierDirError(f"cannot bring the verdict out of the sandbox: {exc}") from exc
        return folder


def _without(environment: Mapping[str, str], names: Container[str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


def _read_rewards(folder: Path) -> dict[str, float]:
    return parse_rewards(_read(folder / "reward.json"), _read(folder / "reward.txt"))


def _read(file: Path) -> str | None:
    if not file.is_file():
        return None
    with file.open("rb") as content:
        return content.read(_MAX_REWARD_BYTES).decode(errors="replace")
