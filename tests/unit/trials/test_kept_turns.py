"""Turns that are written down before the agent sees them, and found again by whoever asks the same."""

from dataclasses import dataclass, field
from pathlib import Path

from seatrial_rollout.engine.generation import Generation, GenerationRequest
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_rollout.trials.kept_turns import KeptTurns, size_of
from tests.clocks import HeldClock


@dataclass
class Counting:
    """An engine whose every turn is another one."""

    made: list[list[int]] = field(default_factory=list)

    async def generate(self, request: GenerationRequest) -> Generation:
        """One token, the number of the turn."""
        self.made.append(request.token_ids)
        return Generation([len(self.made)], [-0.1], [3], "stop", waited_seconds=1.0)


def asked(*token_ids: int, temperature: float = 1.0) -> GenerationRequest:
    return GenerationRequest(list(token_ids), max_tokens=5, temperature=temperature)


def kept(file: Path, engine: Counting, clock: TrialClock | None = None) -> KeptTurns:
    return KeptTurns(engine, file, clock or TrialClock(100))


async def test_the_same_question_gets_the_same_turn_in_another_process_and_others_new_ones(tmp_path: Path) -> None:
    file, engine = tmp_path / "turns", Counting()
    before = kept(file, engine)
    first, again = await before.generate(asked(1)), await before.generate(asked(1))
    after = kept(file, engine)
    assert [await after.generate(asked(1)), await after.generate(asked(1))] == [first, again]
    assert (await after.generate(asked(1))).token_ids == [3]
    assert (await after.generate(asked(2))).token_ids == [4]
    assert (await after.generate(asked(1, temperature=0.5))).token_ids == [5]


async def test_a_line_that_was_cut_off_is_forgotten_and_the_next_one_whole(tmp_path: Path) -> None:
    file, engine = tmp_path / "turns", Counting()
    assert size_of(file) == 0
    before = kept(file, engine)
    await before.generate(asked(1))
    await before.generate(asked(2))
    file.write_bytes(file.read_bytes()[:-9])
    for _ in range(2):
        after = kept(file, engine)
        assert [(await after.generate(asked(number))).token_ids for number in (1, 2)] == [[1], [3]]


async def test_the_time_of_a_turn_is_charged_to_the_agent_again(tmp_path: Path) -> None:
    file, held = tmp_path / "turns", HeldClock()
    await kept(file, Counting()).generate(asked(1))
    told, _, _ = file.read_bytes().rpartition(b'"charged_seconds":')
    file.write_bytes(told + b'"charged_seconds":7.0}\n')
    clock = TrialClock(100, held)
    clock.start()
    await kept(file, Counting(), clock).generate(asked(1))
    assert clock.charged == 7.0
