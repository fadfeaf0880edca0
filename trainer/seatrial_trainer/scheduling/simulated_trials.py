"""Trials without a model: their shape comes from the workload, their faults from a list."""

import math
import random
from collections import Counter
from dataclasses import dataclass, field

from seatrial_api.outcome import Outcome
from seatrial_api.trajectory import TokenSequence, Trajectory
from seatrial_trainer.scheduling.simulated_engines import EngineDiedError, EngineModel, SimulatedEngines
from seatrial_trainer.scheduling.ticket import TrialTicket
from seatrial_trainer.scheduling.virtual_time import LoopClock
from seatrial_trainer.scheduling.workload import TrialShape, Workload

TOKENS_PER_SIMULATED_TOKEN = 1_000
"""Simulated trajectories hold one token where real ones hold a thousand, to fit into memory."""


@dataclass(frozen=True, slots=True)
class Storm:
    """Infrastructure fails for a while: trials that end in it fail with a given chance."""

    at: float
    seconds: float
    share: float
    outcome: Outcome = Outcome.SANDBOX_FAILED


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong besides engines."""

    storms: tuple[Storm, ...] = ()
    failing_share: float = 0.0
    """Trials that fail by their tool server, at any time."""
    hanging_share: float = 0.0
    """Trials whose host never answers."""
    slow_verifier_share: float = 0.0
    """Trials whose verification takes thirty times as long."""
    broken_tasks: frozenset[str] = frozenset()
    """Tasks whose verifier always fails."""


@dataclass(frozen=True, slots=True)
class Learning:
    """How likely a trial is solved: it rises with the weights that sampled it, and falls with its length."""

    start: float = 0.5
    """Pass rate of the untrained model on trials of median length."""
    gain: float = 0.0
    """What training adds in the end."""
    half_life_steps: float = 20.0
    """Steps after which half of it is there."""
    cost_of_length: float = 0.0
    """What a trial loses that is e times as long as the median."""

    def pass_rate(self, version: int, relative_length: float) -> float:
        """Chance of a trial under the weights of a version, 0 to 1."""
        learned = self.gain * (1 - math.exp2(-version / self.half_life_steps))
        return min(1.0, max(0.0, self.start + learned - self.cost_of_length * math.log(relative_length)))


@dataclass(slots=True)
class SimulatedTrials:
    """A `TrialRunner` that sleeps."""

    workload: Workload
    model: EngineModel
    faults: Faults
    engines: SimulatedEngines
    learning: Learning = field(default_factory=Learning)
    groups: dict[str, str] = field(default_factory=dict)
    """Task by group id, for every group that was started."""
    starts: Counter[str] = field(default_factory=Counter)
    """Starts by trial id."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each trial that was not cancelled."""
    clock: LoopClock = field(default_factory=LoopClock)

    async def run(self, ticket: TrialTicket) -> Trajectory:
        """Run one trial in virtual time."""
        self.groups[ticket.group_id] = ticket.task
        self.starts[ticket.trial_id] += 1
        start = self.clock.now()
        # A retry has the length of the first try: lengths belong to the workload, not to luck.
        shape = self.workload.shape(ticket.task, ticket.slot)
        chance = random.Random(f"{self.workload.seed}/{ticket.trial_id}")  # noqa: S311  reproducible, no secret
        try:
            await self._act(shape)
        except EngineDiedError:
            outcome = Outcome.ENGINE_FAILED
        else:
            await self._verify(shape, chance)
            outcome = self._outcome(ticket, chance)
        self.spans.append((start, self.clock.now()))
        pass_rate = self.learning.pass_rate(ticket.start_version, shape.context_tokens / self.workload.median_tokens)
        return _trajectory(ticket, shape, outcome, reward=float(chance.random() < pass_rate))

    async def _act(self, shape: TrialShape) -> None:
        await self.clock.sleep(shape.setup_seconds)
        engine = self.engines.assign()
        growth = max(1, shape.context_tokens // TOKENS_PER_SIMULATED_TOKEN // shape.num_turns)
        resident = 0
        try:
            for _ in range(shape.num_turns):
                await self.engines.generate(engine, shape.turn_tokens, growth, resident)
                resident += growth
                await self.clock.sleep(shape.tool_seconds)
        finally:
            self.engines.release(engine, resident)

    async def _verify(self, shape: TrialShape, chance: random.Random) -> None:
        if chance.random() < self.faults.hanging_share:
            await self.clock.sleep(math.inf)
        is_slow = chance.random() < self.faults.slow_verifier_share
        await self.clock.sleep(shape.verify_seconds * (30 if is_slow else 1))

    def _outcome(self, ticket: TrialTicket, chance: random.Random) -> Outcome:
        now = self.clock.now()
        if ticket.task in self.faults.broken_tasks:
            return Outcome.VERIFIER_FAILED
        if chance.random() < self.faults.failing_share:
            return Outcome.TOOL_SERVER_FAILED
        for storm in self.faults.storms:
            if storm.at <= now < storm.at + storm.seconds and chance.random() < storm.share:
                return storm.outcome
        return Outcome.COMPLETED


def _trajectory(ticket: TrialTicket, shape: TrialShape, outcome: Outcome, reward: float) -> Trajectory:
    num_tokens = max(1, shape.context_tokens // TOKENS_PER_SIMULATED_TOKEN)
    zeros = [0] * num_tokens
    sequence = TokenSequence(
        token_ids=zeros, loss_mask=zeros, logprobs=[0.0] * num_tokens, weight_versions=[-1] * num_tokens
    )
    earned = None if outcome.is_infrastructure else reward
    return ticket.trajectory(outcome, harness="simulated", reward=earned, sequences=[sequence])
