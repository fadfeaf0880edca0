"""What does it cost to keep a trial's turns, and what does it save when the trial's process or its host dies?

Kept: a scripted engine that answers at once, bare and behind `KeptTurns`, turn after turn of one conversation. Lost: a
published recipe's distribution of lengths; a death finds a trial in flight anywhere in its work, long ones more often
than short ones. Left out: the time of setup and of tool calls, which are made again in both cases.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import fmean

from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_rollout.tito.session import GeneratesTokens
from seatrial_rollout.trials.kept_turns import KeptTurns
from seatrial_trainer.scheduling.workload import Workload

_TURN_TOKENS = 550
_OBSERVED_TOKENS = 700


class _Instant:
    """Answers at once."""

    async def generate(self, request: GenerationRequest) -> Generation:
        del request
        ids = list(range(_TURN_TOKENS))
        return Generation(ids, [-1.2345678] * _TURN_TOKENS, [3] * _TURN_TOKENS, "stop")


async def _converse(engine: GeneratesTokens, num_turns: int) -> float:
    """Seconds that a conversation's turns take."""
    started = time.perf_counter()
    for turn in range(num_turns):
        prompt = list(range(turn * (_TURN_TOKENS + _OBSERVED_TOKENS) + _OBSERVED_TOKENS))
        await engine.generate(GenerationRequest(prompt, max_tokens=_TURN_TOKENS, temperature=1.0))
    return time.perf_counter() - started


async def _kept(num_turns: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "turns"
        bare = await _converse(_Instant(), num_turns)
        keeping = await _converse(KeptTurns(_Instant(), file, TrialClock(1e6)), num_turns)
        started = time.perf_counter()
        again = KeptTurns(_Instant(), file, TrialClock(1e6))
        read = time.perf_counter() - started
        told = await _converse(again, num_turns)
        tokens = num_turns * (_TURN_TOKENS + _OBSERVED_TOKENS)
        print(
            f"{num_turns:4} turns, {tokens:7,} tokens: {(keeping - bare) / num_turns * 1e3:.2f} ms a turn, "
            f"{file.stat().st_size / 1e6:.2f} MB; read {read * 1e3:.0f} ms, told again in {told * 1e3:.0f} ms"
        )


def _lost() -> None:
    workload = Workload()
    sampled = [workload.shape(f"task-{task}", slot).sampled_tokens for task in range(200) for slot in range(16)]
    in_flight = fmean(tokens * tokens for tokens in sampled) / fmean(sampled) / 2
    print(
        f"sampled by a trial: {fmean(sampled):,.0f} tokens; by one that a death finds in flight, up to then: "
        f"{in_flight:,.0f} tokens, {in_flight / fmean(sampled):.1f} mean trials' worth"
    )


async def _main() -> None:
    for num_turns in (10, 50, 100):
        await _kept(num_turns)
    _lost()


if __name__ == "__main__":
    asyncio.run(_main())
