"""Many trials, and three in ten of their sandboxes killed: nobody can tell from what they leave behind."""

import random
from pathlib import Path

import pytest

from seatrial_api.outcome import Outcome
from seatrial_api.spec.rollout import ReplaySpec
from seatrial_api.trajectory import Trajectory
from seatrial_rollout.environment.isolation import Means
from seatrial_rollout.tito.template import ChatTemplate
from seatrial_rollout.tito.verify import verify
from tests.sandbox_daemons import means, no_isolation
from tests.storms import LOCAL, SANDBOXD, Kill, Storm, deterministic_agent

pytestmark = pytest.mark.skipif(means() is Means.PLAIN, reason=no_isolation())

NUM_CALLS = 9
NUM_PROGRAMS = 5


@pytest.mark.parametrize(("provider", "num_trials"), [(LOCAL, 40), (SANDBOXD, 14)], ids=["local", "sandboxd"])
async def test_trials_whose_sandboxes_are_killed_leave_the_tokens_of_those_whose_are_not(
    policy: Path, task: Path, provider: str, num_trials: int
) -> None:
    storm = Storm(provider, policy, task, ReplaySpec(snapshot_every_calls=3))
    agents = [deterministic_agent(program, NUM_CALLS) for program in range(NUM_PROGRAMS)]
    calm = await storm.run({f"calm-{index}": agent for index, agent in enumerate(agents)})
    draw = random.Random(7)  # noqa: S311  no secret
    doomed = draw.sample(range(num_trials), k=num_trials * 3 // 10)
    kills = {
        f"storm-{index}": [Kill(draw.randrange(NUM_CALLS), draw.choice([0.0, draw.uniform(0.0, 0.3)]))]
        for index in doomed
    }
    trials = {f"storm-{index}": agents[index % NUM_PROGRAMS] for index in range(num_trials)}
    stormy = await storm.run(trials, kills)
    template = ChatTemplate.load(policy)
    for index in range(num_trials):
        trajectory, expected = stormy[f"storm-{index}"], calm[f"calm-{index % NUM_PROGRAMS}"]
        assert (trajectory.outcome, trajectory.detail) == (Outcome.COMPLETED, "")
        assert sequences(trajectory) == sequences(expected), f"trial {index}"
        assert verify(trajectory, template) == []
        assert trajectory.num_restores <= len(kills.get(f"storm-{index}", ()))
    restored = sum(trajectory.num_restores for trajectory in stormy.values())
    assert restored >= len(doomed) // 2, "kills that came behind a trial's last call went unnoticed, the others did not"
    assert not any(trajectory.num_restores for trajectory in calm.values())


def sequences(trajectory: Trajectory) -> list[object]:
    return [sequence.model_dump() for sequence in trajectory.sequences]
