"""Harbor tasks and trial requests for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial_api.spec.harness import HarnessLimits, HarnessSpec, Sampling
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_rollout.engine.generation import EngineAddress
from seatrial_rollout.tito.policy import Policy
from seatrial_rollout.trials.request import TrialMode, TrialRequest

VERIFIER = """\
#!/bin/sh
if [ "$(cat /workspace/answer.txt 2>/dev/null)" = 42 ]; then reward=1; else reward=0; fi
printf '{"reward": %s, "checked": 1}' "$reward" > /logs/verifier/reward.json
"""
SOLUTION = "#!/bin/sh\necho 42 > /workspace/answer.txt\n"


def write_trial_task(
    folder: Path,
    *,
    verifier: str = VERIFIER,
    servers: Sequence[str] = ("filesystem", "code"),
    config: str = "",
    files: Mapping[str, str] | None = None,
) -> Path:
    """A task whose agent has to write 42 into answer.txt."""
    parts = ['schema_version = "1.4"', "[environment]", 'workdir = "/workspace"']
    for server in servers:
        parts += ["[[environment.mcp_servers]]", f'name = "{server}"', 'transport = "stdio"']
        parts += ['command = "seatrial-mcp"', f'args = ["{server}"]']
    contents = {
        "instruction.md": "Write 42 into answer.txt.",
        "task.toml": "\n".join([*parts, config]),
        "environment/files/notes.txt": "Nothing to see here.\n",
        "tests/test.sh": verifier,
        "solution/solve.sh": SOLUTION,
        **(files or {}),
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    for script in ("tests/test.sh", "solution/solve.sh"):
        (folder / script).chmod(0o755)
    return folder


def make_request(
    task: Path,
    *,
    trial_id: str = "trial-0",
    mode: TrialMode = TrialMode.AGENT,
    harness: str = "archipelago",
    model_path: Path | None = None,
    engines: Sequence[EngineAddress] = (),
    **limits: Any,
) -> TrialRequest:
    """A request in a local sandbox; the keyword arguments that are left are limits of the harness."""
    if "wall_timeout_seconds" in limits:
        limits = {"agent_timeout_seconds": limits["wall_timeout_seconds"], **limits}
    return TrialRequest(
        trial_id=trial_id,
        group_id="group-0",
        purpose="Train",
        task=task.name,
        task_path=task,
        domain="office",
        start_version=7,
        harness=HarnessSpec(name=harness, limits=HarnessLimits(**limits)),
        sampling=Sampling(),
        max_steps=8,
        sandbox=SandboxSpec(provider="local"),
        policy=None if model_path is None else Policy(model_path, 16_384, "hermes"),
        engines=list(engines),
        mode=mode,
    )
