"""The turns that the policy took in a trial, kept where the death of the trial's process does not reach them."""

import hashlib
import os
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.engine.wire import encode
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_rollout.tito.session import GeneratesTokens


@dataclass(frozen=True, slots=True)
class _Turn:
    """A line of the file."""

    asked: str
    """Digest of all that decided what may be sampled."""
    generation: Generation
    charged_seconds: float
    """What the engine's work cost the agent."""


_decode = msgspec.json.Decoder(_Turn).decode


@dataclass(slots=True)
class KeptTurns:
    """An engine that writes each turn down before the agent sees it.

    In the process that goes on with the trial, the agent begins anew in a sandbox of its own and asks as before. It is
    answered with what was sampled for exactly the same tokens: ids, log-probabilities and weight versions, at no cost
    but the time, which is charged again. Where a tool answers otherwise than it did, the tokens differ, and the policy
    goes on from there afresh. So nothing has to be compared, and whatever comes of it is a trial like any other.
    """

    engine: GeneratesTokens
    file: Path
    clock: TrialClock
    _turns: dict[str, deque[_Turn]] = field(default_factory=lambda: defaultdict(deque), init=False)

    def __post_init__(self) -> None:
        with self.file.open("ab+") as kept:
            kept.seek(0)
            *lines, torn = kept.read().split(b"\n")
            if torn:  # the process died while it wrote
                kept.truncate(kept.tell() - len(torn))
        for line in lines:
            turn = _decode(line)
            self._turns[turn.asked].append(turn)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Continue a token prompt, with what was sampled for it before if there is any.

        Raises:
            SeatrialError: Whatever the engine raises.
        """
        asked = _digest(request)
        if self._turns.get(asked):
            turn = self._turns[asked].popleft()
            self.clock.charge(turn.charged_seconds)
            return turn.generation
        started = SYSTEM_CLOCK.now()
        generation = await self.engine.generate(request)
        charged = max(0.0, SYSTEM_CLOCK.now() - started - generation.waited_seconds)
        with self.file.open("ab") as kept:
            kept.write(encode(_Turn(asked, generation, charged)) + b"\n")
        return generation


def size_of(file: Path) -> int:
    """How much is kept; 0 if nothing is."""
    try:
        return os.stat(file).st_size  # noqa: PTH116  two microseconds; nothing to wait for
    except FileNotFoundError:
        return 0


def _digest(request: GenerationRequest) -> str:
    sampling = (request.max_tokens, request.temperature, request.top_p, request.stop_token_ids, request.structural_tag)
    return hashlib.blake2b(encode((request.token_ids, sampling)), digest_size=16).hexdigest()
