"""Whether a team's own harnesses can be loaded, before anything is tried with them.

Asked in a process of its own: what a foreign module does when it is imported must not happen in a host or its zygote.

    python -m seatrial_rollout.trials.harness_check MODULE:CLASS ...
"""

import asyncio
import sys
from collections.abc import Iterable, Mapping

from seatrial_api.errors import InvalidInputError

_LOAD_SECONDS = 120.0
"""A busy machine needs 10 s for Harbor."""


async def check_harnesses(names: Iterable[str], env: Mapping[str, str]) -> None:
    """Load every harness that is not one of ours.

    Args:
        names: As manifests name them.
        env: Environment of the trial processes.

    Raises:
        InvalidInputError: if one cannot be loaded.
    """
    own = [name for name in names if ":" in name]
    if not own:
        return
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "seatrial_rollout.trials.harness_check", *own),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=env,
    )
    try:
        async with asyncio.timeout(_LOAD_SECONDS):
            _, output = await process.communicate()
    except TimeoutError:
        raise InvalidInputError(f"harness.name: loading {', '.join(own)} takes over {_LOAD_SECONDS:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        *_, problem = output.decode(errors="replace").strip().splitlines() or ["its process died"]
        raise InvalidInputError(f"harness.name: {problem}")


def main() -> None:
    """Load the harnesses that the command line names; the last line of what is printed says what is wrong."""
    from harbor.agents.base import BaseAgent  # noqa: PLC0415  takes seconds
    from harbor.utils.import_path import import_class  # noqa: PLC0415  takes seconds

    for name in sys.argv[1:]:
        try:
            import_class(name, base=BaseAgent, label="harness")
        except Exception as error:  # noqa: BLE001  whatever a foreign module raises
            reason = " ".join(str(error).split())
            sys.exit(f"{name} cannot be loaded where trials run: {type(error).__name__}: {reason}")


if __name__ == "__main__":
    main()
