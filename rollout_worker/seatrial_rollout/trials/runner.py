"""The one thin adapter to Harbor: a trial request in, a trajectory out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbor.models.task.config import MCPServerConfig
from harbor.models.task.verifier_mode import VerifierEnvironmentMode, resolve_task_verifier_mode
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TrialConfig, VerifierConfig
from harbor.models.trial.config import TaskConfig as TaskReference
from harbor.models.trial.result import TimingInfo, TrialResult

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_api.errors import InvalidInputError
from seatrial_api.sandboxes import GATEWAY_SERVER
from seatrial_api.spec.rollout import SandboxSpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.engine.client import EngineClient
from seatrial_rollout.environment.broker_access import BrokerAccess
from seatrial_rollout.harness.registry import import_path
from seatrial_rollout.harness.setting import HarnessSetting
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_rollout.judge.rubric import RUBRIC_FILE
from seatrial_rollout.trials.archipelago_task import read_archipelago, world_of
from seatrial_rollout.trials.judging import JudgeSetting
from seatrial_rollout.trials.kept_turns import KeptTurns
from seatrial_rollout.trials.outcomes import Evidence, Interruption, Phase, identity, judge
from seatrial_rollout.trials.request import TrialMode, TrialRequest
from seatrial_rollout.trials.slim_trial import SlimTask, SlimTrial

_LOCAL_ENVIRONMENT = "seatrial_rollout.environment.local:LocalEnvironment"
_KUBERNETES_ENVIRONMENT = "seatrial_rollout.environment.kubernetes:KubernetesEnvironment"
_SOURCE = "seatrial_rollout.environment.broker:current_source"
_CLAIM_SHARE = 0.9
"""Of the time of setup, for which a claim waits: the rest is for its typed answer, and for the tools."""
_VERIFIER = "seatrial_rollout.trials.verifier:SandboxVerifier"
_RUBRIC_VERIFIER = "seatrial_rollout.trials.rubric_verifier:RubricVerifier"
_SETUP_MARGIN_SECONDS = 10.0
_GATEWAY = MCPServerConfig(name=GATEWAY_SERVER, transport="streamable-http", url="http://gateway/mcp/")
"""What serves the tools of an archipelago task, which need not say so; sandboxes know where it is."""
_KEPT_OF_RECORD = ("sequences", "turns", "given", "charged_seconds", "num_restores", "restore_seconds")


@dataclass
class _Attempt:
    """What is known of a trial once it is over."""

    trial: SlimTrial | None = None
    """None if Harbor refused the task or the configuration."""
    error: BaseException | None = None
    interruption: Interruption | None = None

    def conclude(self, request: TrialRequest) -> Trajectory:
        """Everything that is kept of the trial."""
        result = None if self.trial is None else self.trial.result
        record = None if self.trial is None else self.trial.record
        verified = None if result is None else result.verifier_result
        verdict = judge(
            Evidence(
                phase=_last_phase(result),
                agent_outcome=None if record is None else record.outcome,
                agent_detail="" if record is None else record.detail,
                error=self.error or (None if self.trial is None else self.trial.error),
                interruption=self.interruption,
                scores=None if verified is None else verified.rewards,
            )
        )
        kept = {} if record is None else {name: getattr(record, name) for name in _KEPT_OF_RECORD}
        return Trajectory(
            **identity(request),
            **kept,
            outcome=verdict.outcome,
            detail=verdict.detail,
            reward=verdict.reward,
            scores=verdict.scores,
            world="" if self.trial is None else _world(request.sandbox, self.trial.task),
            findings=[] if self.trial is None else list(self.trial.findings),
            phase_seconds=_phase_seconds(result),
        )


async def run_trial(
    request: TrialRequest, work_dir: Path, turns_file: Path | None = None, wall_seconds: float | None = None
) -> Trajectory:
    """Run one trial to its verified end; every way to end is an outcome, and nothing is raised.

    Args:
        request: The task, the agent and its limits.
        work_dir: Empty folder for the sandbox and Harbor's files; the caller removes it.
        turns_file: Where the policy's turns are kept, and found if the trial goes on; nowhere if None.
        wall_seconds: Time until the wall deadline; all of it if None.
    """
    started = SYSTEM_CLOCK.now()
    limits = request.harness.limits
    engine = EngineClient(request.engines, timeout_seconds=limits.engine_call_timeout_seconds)
    wall_seconds = limits.wall_timeout_seconds if wall_seconds is None else wall_seconds
    clock = TrialClock(limits.agent_timeout_seconds)
    kept = engine if turns_file is None else KeptTurns(engine, turns_file, clock)
    setting = HarnessSetting(request, kept, clock)
    attempt = _Attempt()
    try:
        async with asyncio.timeout(wall_seconds), _sandboxes(request):
            with setting.current():
                attempt.trial = _create(request, work_dir)
            with _judge(request, attempt.trial):
                await attempt.trial.run()
    except TimeoutError:
        attempt.interruption = Interruption.DEADLINE
    except asyncio.CancelledError:
        attempt.interruption = Interruption.CANCELLED
    except Exception as exc:  # noqa: BLE001  the root of a trial: told in its trajectory
        attempt.error = exc
    finally:
        await engine.close()
    return attempt.conclude(request).model_copy(update={"wall_seconds": SYSTEM_CLOCK.now() - started})


@asynccontextmanager
async def _sandboxes(request: TrialRequest) -> AsyncIterator[None]:
    """Have what the trial's sandboxes come from, and give back what it leaves of them."""
    if request.sandbox.provider != "kubernetes":
        yield
        return
    from seatrial_rollout.environment.broker import BrokerSource  # noqa: PLC0415  gRPC, which no other provider needs

    access = BrokerAccess.of_this_pod()
    wait_seconds = _CLAIM_SHARE * request.harness.limits.setup_timeout_seconds
    async with BrokerSource(access, label=request.trial_id, wait_seconds=wait_seconds) as source:
        with source.current():
            yield


def _create(request: TrialRequest, work_dir: Path) -> SlimTrial:
    limits = request.harness.limits
    try:
        task = SlimTask(request.task_path)
    except (OSError, ValueError) as exc:
        raise InvalidInputError(f"{request.task_path} is no task that can be tried: {exc}") from exc
    task.config.environment.build_timeout_sec = limits.setup_timeout_seconds
    is_in_pod = request.sandbox.provider == "kubernetes"
    if is_in_pod and read_archipelago(task.task_dir) and not task.config.environment.mcp_servers:
        task.config.environment.mcp_servers = [_GATEWAY]
    verifier = task.config.verifier
    has_own_timeout = "timeout_sec" in verifier.model_fields_set
    config = TrialConfig(
        task=TaskReference(path=request.task_path),
        trials_dir=work_dir,
        trial_name="trial",
        agent=_agent(request),
        environment=_environment(request.sandbox, task),
        verifier=VerifierConfig(
            override_timeout_sec=None if has_own_timeout else limits.verifier_timeout_seconds,
            import_path=_verifier(task),
        ),
    )
    return SlimTrial(config, task)


def _verifier(task: SlimTask) -> str | None:
    if (task.task_dir / RUBRIC_FILE).exists():
        return _RUBRIC_VERIFIER
    if resolve_task_verifier_mode(task.config) != VerifierEnvironmentMode.SHARED:
        return None
    if not task.paths.test_path.exists():
        raise InvalidInputError(f"{task.task_dir} has neither tests/test.sh nor {RUBRIC_FILE}: nothing can verify it")
    return _VERIFIER


def _judge(request: TrialRequest, trial: SlimTrial) -> AbstractContextManager[None]:
    if request.judge is None:
        return nullcontext()
    return JudgeSetting(request.judge, request.trial_id, trial.verifier_timeout_sec).current()


def _agent(request: TrialRequest) -> AgentConfig:
    limits = request.harness.limits
    match request.mode:
        case TrialMode.ORACLE:
            return AgentConfig(name="oracle", override_timeout_sec=limits.agent_timeout_seconds)
        case TrialMode.NO_OP:
            return AgentConfig(name="nop")
        case TrialMode.AGENT:
            return AgentConfig(
                import_path=import_path(request.harness.name),
                # The harness keeps this limit itself and then knows which server was not ready.
                override_setup_timeout_sec=limits.setup_timeout_seconds + _SETUP_MARGIN_SECONDS,
                # The harness charges its own time; waiting for infrastructure only counts against the wall deadline.
                override_timeout_sec=limits.wall_timeout_seconds,
            )


def _environment(sandbox: SandboxSpec, task: SlimTask) -> EnvironmentConfig:
    if sandbox.provider == "local":
        return EnvironmentConfig(import_path=_LOCAL_ENVIRONMENT, kwargs=dict(sandbox.config))
    if sandbox.provider == "kubernetes":
        archipelago = read_archipelago(task.task_dir)
        kwargs: dict[str, Any] = {"source": _SOURCE, "world": _world(sandbox, task)}
        if archipelago:
            kwargs |= {"slug": archipelago.task_slug, "keeps_initial": archipelago.needs_snapshot}
        return EnvironmentConfig(import_path=_KUBERNETES_ENVIRONMENT, kwargs=kwargs)
    name = sandbox.provider.removeprefix("harbor:")
    place: dict[str, Any] = {"import_path": name} if ":" in name else {"type": name}
    return EnvironmentConfig(**place, kwargs=dict(sandbox.config))


def _world(sandbox: SandboxSpec, task: SlimTask) -> str:
    """What the sandbox is made from: the task's world, else the run's; the provider where there are none."""
    if sandbox.provider != "kubernetes":
        return sandbox.provider
    return world_of(task.config.metadata, read_archipelago(task.task_dir)) or sandbox.world or ""


def _last_phase(result: TrialResult | None) -> Phase:
    if result is None:
        return Phase.SANDBOX
    if result.verifier is not None:
        return Phase.VERIFY
    return Phase.SANDBOX if result.agent_setup is None else Phase.AGENT


def _phase_seconds(result: TrialResult | None) -> dict[str, float]:
    if result is None:
        return {}
    return {
        Phase.SANDBOX: _seconds(result.environment_setup) + _seconds(result.agent_setup),
        Phase.AGENT: _seconds(result.agent_execution),
        Phase.VERIFY: _seconds(result.verifier),
    }


def _seconds(timing: TimingInfo | None) -> float:
    if timing is None or timing.started_at is None or timing.finished_at is None:
        return 0.0
    return float((timing.finished_at - timing.started_at).total_seconds())
