"""Make the quickstart's policy: `python make_policy.py`.

A tokenizer is built from the office's words, a careless clerk does some thousand tasks with the real tools, and a
Qwen3 with 0.9 million parameters first learns to repeat lists and then to imitate the clerk. Takes about five minutes
on one core; the same machine and seed give the same file.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a second thread changes the order of sums, and gains nothing

import torch
from office.kinds import make_task
from transformers import AutoTokenizer
from warm_start.clerk import Habits, work
from warm_start.desk import open_desk
from warm_start.lessons import conversation_lesson, list_lesson
from warm_start.lists import draw_list
from warm_start.tokenizer import MIN_COUNT, save_tokenizer, train_tokenizer
from warm_start.training import Course, Teacher, new_model

from seatrial_rollout.tito.template import ToolSchema

HERE = Path(__file__).parent
CONTEXT_LENGTH = 1024
FIRST_SEED = 20_000_000
"""Tasks that the clerk does; no task set of the quickstart lies in this range."""

type Conversation = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How much of what."""

    num_demonstrations: int
    repeating: Course
    imitating: Course


SHIPPED = Recipe(
    num_demonstrations=6000,
    repeating=Course(steps=350, batch_size=32, decay=0.0),
    imitating=Course(steps=350, batch_size=16, decay=0.4),
)
"""What the policy in `policy/` was made by."""


def main() -> None:
    """Make the policy in the folder that the command line names; its chat template has to lie there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", default=HERE / "policy", help="folder with chat_template.jinja")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    make_policy(arguments.out, SHIPPED, seed=arguments.seed)


def make_policy(out: Path, recipe: Recipe, *, seed: int) -> None:
    """Write tokenizer, configuration and weights next to the chat template in `out`."""
    rng = random.Random(seed)
    lists = [draw_list(rng) for _ in range(recipe.repeating.steps * recipe.repeating.batch_size)]
    conversations, tools = asyncio.run(demonstrate(recipe.num_demonstrations, rng))
    _say(f"{len(conversations)} demonstrations")

    texts = [message["content"] for conversation in conversations for message in conversation]
    texts += [shown for shown, _ in lists] + _frame(tools)
    save_tokenizer(train_tokenizer(texts), out, context_length=CONTEXT_LENGTH)
    tokenizer = AutoTokenizer.from_pretrained(out)
    _say(f"{len(tokenizer)} tokens")

    model = new_model(tokenizer, seed=seed)
    teacher = Teacher(model)
    _report("repeating", teacher.teach([list_lesson(tokenizer, *pair) for pair in lists], recipe.repeating, rng))
    lessons = [conversation_lesson(tokenizer, conversation, tools) for conversation in conversations]
    _report("imitating", teacher.teach(lessons, recipe.imitating, rng))
    model.to(torch.bfloat16).save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)


async def demonstrate(count: int, rng: random.Random) -> tuple[list[Conversation], Sequence[ToolSchema]]:
    """Let the clerk do `count` tasks.

    Returns:
        Its conversations, and the tools that it had.
    """
    conversations: list[Conversation] = []
    with tempfile.TemporaryDirectory() as folder:
        async with open_desk(Path(folder) / "office") as desk:
            for seed in range(FIRST_SEED, FIRST_SEED + count):
                task = make_task(seed)
                desk.furnish(task.office)
                done = await work(task, desk, rng, Habits())
                conversations.append([{"role": "user", "content": task.instruction}, *done])
            return conversations, desk.tools


def _frame(tools: Sequence[ToolSchema]) -> list[str]:
    """What the chat template adds to a conversation, and the numbers that not every list happens to hold."""
    names = " ".join(tool["function"]["name"] for tool in tools)
    numbers = " ".join(f"{number:02d} {number}" for number in range(100))
    return [f"system\nTools: {names}\nuser\nassistant\n", numbers] * MIN_COUNT


def _report(name: str, losses: Iterable[float]) -> None:
    for step, loss in enumerate(losses, start=1):
        if step % 50 == 0:
            _say(f"{name}: step {step}, loss {loss:.3f}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
