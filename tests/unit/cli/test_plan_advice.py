from io import StringIO

from rich.console import Console

from seatrial.plan_advice_view import render
from seatrial_trainer.scheduling.advice import Advice
from seatrial_trainer.scheduling.simulated_figures import SimulatedFigures


def figures(step_seconds: float) -> SimulatedFigures:
    return SimulatedFigures(
        step_seconds=step_seconds,
        trials_per_second=1.0,
        engines_used=0.5,
        trainer_used=0.25,
        waited=0.75,
        held=0.5,
        staleness={0: 0.5, 3: 0.5},
        preemptions_per_trial=0.0,
        failed=0.0,
        reward_by_step=(),
        reward_by_cohort=(),
    )


ADVICE = Advice(200, {100: figures(150.0), 200: figures(102.0), 400: figures(100.0)}, seconds=180.0)


def shown(asked: int) -> str:
    console = Console(file=StringIO(), width=400)
    console.print(render(ADVICE, asked))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_plan_names_the_concurrency_that_suffices_and_what_others_lose() -> None:
    text = shown(400)
    assert "50% longer" in text
    assert "the least time" in text
    assert "200 trials in flight train within 5% of the fastest: groups are 1.5 steps old" in text
    assert "raise it" not in text


def test_a_concurrency_that_loses_more_is_told_what_to_become() -> None:
    assert "async.concurrency is 100: raise it to 200 if memory allows." in shown(100)
