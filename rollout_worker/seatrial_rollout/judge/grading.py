"""Grades work by a rubric: every criterion asked for by itself, as often as there are votes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from seatrial_rollout.judge.errors import NoVerdictError
from seatrial_rollout.judge.rubric import (
    Criterion,
    Message,
    Rubric,
    Verdict,
    VerdictError,
    Work,
    complaint,
    parse_verdict,
    question,
)

MAX_REPLIES = 10
"""Replies of one judge to one question until it is given up."""
_MAX_AT_ONCE = 10

type Ask = Callable[[Sequence[Message], int], Awaitable[str]]
"""Asks a judge, with a seed that tells votes apart."""


@dataclass(frozen=True, slots=True)
class CriterionGrade:
    """How one criterion was decided."""

    criterion: Criterion
    passed: bool
    votes: tuple[Verdict, ...]
    """None if nobody had to be asked."""
    note: str = ""
    """Why nobody was."""


@dataclass(frozen=True, slots=True)
class Grades:
    """How all of a rubric was decided."""

    criteria: tuple[CriterionGrade, ...]

    @property
    def reward(self) -> float:
        """Weighted share of the criteria that are met."""
        total = sum(grade.criterion.weight for grade in self.criteria)
        return sum(grade.criterion.weight for grade in self.criteria if grade.passed) / total

    @property
    def scores(self) -> dict[str, float]:
        """The reward, and 1 or 0 for each criterion."""
        return {"reward": self.reward, **{grade.criterion.id: float(grade.passed) for grade in self.criteria}}


async def grade(rubric: Rubric, work: Work, ask: Ask, *, votes: int = 1) -> Grades:
    """Decide every criterion.

    Args:
        rubric: The criteria.
        work: What is graded.
        ask: The judge.
        votes: Verdicts per criterion; it is met if more than half say so.

    Raises:
        NoVerdictError: if one criterion gets no verdict; there is no reward of what could be decided.
    """
    slots = asyncio.Semaphore(_MAX_AT_ONCE)

    async def vote(criterion: Criterion, seed: int) -> Verdict:
        async with slots:
            return await _verdict(work, criterion, ask, seed)

    asked = [criterion for criterion in rubric.criteria if _missing(work, criterion) is None]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                criterion.id: [group.create_task(vote(criterion, seed)) for seed in range(votes)] for criterion in asked
            }
    except* NoVerdictError as failures:
        raise NoVerdictError(str(failures.exceptions[0])) from failures
    return Grades(tuple(_decide(work, criterion, tasks.get(criterion.id, ())) for criterion in rubric.criteria))


def _decide(work: Work, criterion: Criterion, votes: Sequence[asyncio.Task[Verdict]]) -> CriterionGrade:
    verdicts = tuple(task.result() for task in votes)
    passed = sum(verdict.passed for verdict in verdicts)
    return CriterionGrade(criterion, 2 * passed > len(verdicts), verdicts, _missing(work, criterion) or "")


def _missing(work: Work, criterion: Criterion) -> str | None:
    """Why a criterion fails without being asked for; None if it has to be."""
    if criterion.artifact is None or work.has_artifact(criterion.artifact):
        return None
    return f"no file like {criterion.artifact} was added or changed"


async def _verdict(work: Work, criterion: Criterion, ask: Ask, seed: int) -> Verdict:
    messages = question(work, criterion)
    problem = VerdictError()
    for _ in range(MAX_REPLIES):
        said = await ask(messages, seed)
        try:
            return parse_verdict(said)
        except VerdictError as exc:
            messages, problem = [*question(work, criterion), *complaint(said, exc)], exc
    raise NoVerdictError(f"criterion {criterion.id}: none of {MAX_REPLIES} replies is a verdict; the last: {problem}")
