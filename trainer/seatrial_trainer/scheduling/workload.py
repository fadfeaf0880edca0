"""How long trials take: a seeded model of agentic work with heavy tails, after the published recipe.

A trial's context grows from a prompt to between 2,000 and 128,000 tokens, log-normal with a median of 16,000 and a log
standard deviation of 1, of which a part belongs to the task (trials of one group are alike) and a part to the
trial. Nine twentieths of it are sampled, in turns of some 550 tokens and at most 100 of them; the rest is prompts and
tool results. Each turn ends in a tool call of log-normal duration, mostly seconds and rarely minutes. Setup (sandbox,
tool servers) and verification (a judge) are log-normal too. An agent stops when its charged time is spent.
"""

import math
import random
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Self

_NUM_SAMPLES = 200
"""Trials that a mean is taken over."""


@dataclass(frozen=True, slots=True)
class TrialShape:
    """What one trial will do, whatever engine it meets."""

    setup_seconds: float
    num_turns: int
    turn_tokens: int
    """Tokens sampled in a turn."""
    tool_seconds: float
    """Mean duration of the tool call after a turn."""
    context_tokens: int
    """Tokens of the whole conversation at its end."""
    verify_seconds: float

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled over all turns."""
        return self.num_turns * self.turn_tokens

    def seconds(self, tokens_per_second: float) -> float:
        """Wall time on an engine that never keeps it waiting."""
        agent = self.sampled_tokens / tokens_per_second + self.num_turns * self.tool_seconds
        return self.setup_seconds + agent + self.verify_seconds


@dataclass(frozen=True, slots=True)
class Workload:
    """The distributions. A shape is a function of seed, task and place: a retry is as long as the first try."""

    seed: int = 0
    median_tokens: float = 16_000.0
    min_tokens: float = 2_000.0
    max_tokens: float = 128_000.0
    task_sigma: float = 0.6
    """Part of the log standard deviation that trials of one task share."""
    trial_sigma: float = 0.8
    """Part that each trial has for itself."""
    sampled_share: float = 0.45
    tokens_per_turn: int = 550
    max_turns: int = 100
    median_tool_seconds: float = 1.5
    tool_sigma: float = 1.5
    max_tool_seconds: float = 600.0
    agent_seconds: float = 3_500.0
    """Charged time of an agent on an engine with `tokens_per_second`."""
    tokens_per_second: float = 40.0
    median_setup_seconds: float = 8.0
    median_verify_seconds: float = 20.0

    def resized(self, *, mean_seconds: float, mean_tokens: float, max_tokens: float) -> Self:
        """The same distributions, scaled to trials of another size.

        Args:
            mean_seconds: Wall time of a trial on an engine that keeps nobody waiting.
            mean_tokens: Tokens of its conversation; cutting at the bounds moves the mean a little.
            max_tokens: Where conversations are cut.
        """
        size = mean_tokens / (self.median_tokens * math.exp((self.task_sigma**2 + self.trial_sigma**2) / 2))
        sized = replace(
            self, median_tokens=self.median_tokens * size, min_tokens=self.min_tokens * size, max_tokens=max_tokens
        )
        samples = [sized.shape(f"sample-{number}", 0) for number in range(_NUM_SAMPLES)]
        pace = mean_seconds / fmean(sample.seconds(sized.tokens_per_second) for sample in samples)
        return replace(
            sized,
            tokens_per_second=sized.tokens_per_second / pace,
            median_tool_seconds=sized.median_tool_seconds * pace,
            max_tool_seconds=sized.max_tool_seconds * pace,
            agent_seconds=sized.agent_seconds * pace,
            median_setup_seconds=sized.median_setup_seconds * pace,
            median_verify_seconds=sized.median_verify_seconds * pace,
        )

    def shape(self, task: str, slot: int) -> TrialShape:
        """The shape of one trial."""
        of_task = random.Random(f"{self.seed}/{task}").gauss(0.0, self.task_sigma)  # noqa: S311  reproducible
        rng = random.Random(f"{self.seed}/{task}/{slot}")  # noqa: S311  reproducible, no secret
        log_tokens = math.log(self.median_tokens) + of_task + rng.gauss(0.0, self.trial_sigma)
        context = min(self.max_tokens, max(self.min_tokens, math.exp(log_tokens)))
        num_turns = min(self.max_turns, max(1, round(context * self.sampled_share / self.tokens_per_turn)))
        turn_tokens = max(1, round(context * self.sampled_share / num_turns))
        tool_seconds = [
            min(self.max_tool_seconds, rng.lognormvariate(math.log(self.median_tool_seconds), self.tool_sigma))
            for _ in range(num_turns)
        ]
        mean_tool_seconds = sum(tool_seconds) / num_turns
        num_affordable = int(self.agent_seconds / (turn_tokens / self.tokens_per_second + mean_tool_seconds))
        num_turns_taken = max(1, min(num_turns, num_affordable))
        return TrialShape(
            setup_seconds=rng.lognormvariate(math.log(self.median_setup_seconds), 0.5),
            num_turns=num_turns_taken,
            turn_tokens=turn_tokens,
            tool_seconds=mean_tool_seconds,
            context_tokens=int(context * num_turns_taken / num_turns),
            verify_seconds=rng.lognormvariate(math.log(self.median_verify_seconds), 0.7),
        )
