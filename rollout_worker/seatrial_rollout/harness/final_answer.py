"""The words that an agent ended its work with, for a verifier to read."""

from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment

from seatrial_rollout.harness.sandbox_file import SandboxFile

FINAL_ANSWER_FILE = "final_answer.txt"
"""Name of the file in the agent's log folder; an agent that ended in another way leaves none."""


async def leave_answer(
    answer: str, environment: BaseEnvironment, logs_dir: Path, environment_logs_dir: PurePosixPath
) -> None:
    """Put the final answer into the sandbox.

    Raises:
        SandboxFailedError: It could not be written.
    """
    await SandboxFile(environment, logs_dir, environment_logs_dir, FINAL_ANSWER_FILE).write(answer)
