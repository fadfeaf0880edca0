"""The words that an agent ended its work with, for a verifier to read."""

from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment

from seatrial_rollout.harness.errors import SandboxFailedError

FINAL_ANSWER_FILE = "final_answer.txt"
"""Name of the file in the agent's log folder; an agent that ended in another way leaves none."""


async def leave_answer(
    answer: str, environment: BaseEnvironment, logs_dir: Path, environment_logs_dir: PurePosixPath
) -> None:
    """Put the final answer into the sandbox.

    Raises:
        SandboxFailedError: It could not be written.
    """
    source = logs_dir / FINAL_ANSWER_FILE
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(answer)
    target = str(environment_logs_dir / FINAL_ANSWER_FILE)
    try:
        await environment.upload_file(source, target)
    except Exception as exc:
        raise SandboxFailedError(f"{target} could not be written: {type(exc).__name__}: {exc}") from exc
