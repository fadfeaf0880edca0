"""Grades a trial by its task's rubric; the judge is asked from here, so that nothing of it enters the sandbox."""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import override

import aiohttp
from harbor.models.trial.paths import EnvironmentPaths
from harbor.models.verifier.result import VerifierResult
from harbor.verifier.base import BaseVerifier
from harbor.verifier.verifier import DownloadVerifierDirError

from seatrial_rollout.environment.changed_files import TellsChanges
from seatrial_rollout.environment.harbor_base import WORKDIR
from seatrial_rollout.judge.evidence import bounded, collect, told_change
from seatrial_rollout.judge.grading import Grades, grade
from seatrial_rollout.judge.rubric import RUBRIC_FILE, Message, Work, read_rubric
from seatrial_rollout.trials.judging import current_judge
from seatrial_rollout.trials.rewards import VerifierError
from seatrial_rollout.trials.verifier import BeginsVerification

_ANSWER = str(EnvironmentPaths().agent_dir / "final_answer.txt")
_MAX_REPLY_TOKENS = 4096


class RubricVerifier(BaseVerifier):  # type: ignore[misc]  # Harbor is untyped here
    """Harbor's verifier for tasks with `tests/rubric.json`.

    What the agent left is looked at once nothing of it runs any more: pods tell what was changed, the files of others
    are compared with the task's `environment/files`. How each criterion was decided is written to `judgement.json`
    beside the verifier's other files.
    """

    @override
    async def verify(self) -> VerifierResult:
        """Grade what the agent left.

        Raises:
            NoVerdictError: if the judge gave no verdict on a criterion.
            VerifierError: if the run has no judge.
            InvalidInputError: if the rubric cannot be used.
            DownloadVerifierDirError: if the files cannot be brought out of the sandbox.
        """
        setting = current_judge()
        if setting is None:
            raise VerifierError(f"the task is graded by {RUBRIC_FILE} and the run has no judge; set spec.judge")
        rubric = read_rubric(self.task.task_dir / RUBRIC_FILE)
        work = await self._work()
        verification = setting.begin()
        model = setting.access.model

        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:

            async def ask(messages: Sequence[Message], seed: int) -> str:
                body = {"model": model, "messages": list(messages), "seed": seed, "max_tokens": _MAX_REPLY_TOKENS}
                return await verification.ask(session, body)

            grades = await grade(rubric, work, ask, votes=setting.access.votes)
        self._write(grades)
        return VerifierResult(rewards=grades.scores)

    async def _work(self) -> Work:
        if isinstance(self.environment, BeginsVerification):
            await self.environment.begin_verification()
        with tempfile.TemporaryDirectory(dir=self.trial_paths.trial_dir) as folder:
            try:
                answer = await self._answer(Path(folder, "answer.txt"))
                if isinstance(self.environment, TellsChanges):
                    found = await self.environment.changed_files()
                    changes = [told_change(file.kind, file.path, file.size, file.extract) for file in found]
                    return bounded(self.task.instruction, answer, changes)
                return await self._compared(answer, Path(folder, "after"))
            except OSError as exc:
                raise DownloadVerifierDirError(f"cannot bring the work out of the sandbox: {exc}") from exc

    async def _compared(self, answer: str, after: Path) -> Work:
        """The work by comparison with the task's files, for a sandbox that does not tell what was changed."""
        workdir = str(self.task.config.environment.workdir or WORKDIR)
        await self.environment.download_dir(source_dir=workdir, target_dir=after)
        before = self.task.paths.environment_dir / "files"
        return await asyncio.to_thread(partial(collect, self.task.instruction, answer, before, after))

    async def _answer(self, target: Path) -> str:
        try:
            await self.environment.download_file(source_path=_ANSWER, target_path=target)
        except FileNotFoundError:
            return ""
        return _text(target)

    def _write(self, grades: Grades) -> None:
        rows = [
            {
                "criterion": decided.criterion.id,
                "passed": decided.passed,
                "note": decided.note,
                "votes": [vote.model_dump() for vote in decided.votes],
            }
            for decided in grades.criteria
        ]
        folder: Path = self.trial_paths.verifier_dir
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "judgement.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")
