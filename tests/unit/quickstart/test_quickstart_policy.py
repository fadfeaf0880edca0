"""The policy that ships with the quickstart, and that it was taught in the very tokens that the harness gives it."""

import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from harbor.models.agent.context import AgentContext
from hypothesis import given
from hypothesis import strategies as st
from make_policy import CONTEXT_LENGTH, FIRST_SEED, SHIPPED, Recipe, make_policy
from make_tasks import SPLITS
from office.kinds import make_task
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from warm_start.clerk import FAULTLESS, Habits, work
from warm_start.desk import RealDesk, open_desk
from warm_start.lessons import conversation_lesson
from warm_start.lists import draw_list
from warm_start.training import Course

from seatrial_rollout.tito.template import ChatTemplate
from seatrial_sandbox.servers import BUILDERS
from seatrial_sandbox.workspace import Workspace
from tests.agents import Harness, MemorySandbox
from tests.chat_models import FAMILIES, ChatModel
from tests.scripted_engine import ScriptedEngine
from tests.unit.quickstart.conftest import QUICKSTART

POLICY = QUICKSTART / "policy"
CARELESS = Habits(bad_json=0.25, wrong_row=0.3, wrong_column=0.3)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(POLICY)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[RealDesk]:
    async with open_desk(tmp_path / "workspace") as desk:
        yield desk


def rng_of(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  a test's draws


def test_the_weights_are_small_and_all_there() -> None:
    assert (POLICY / "model.safetensors").stat().st_size < 4_000_000
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    assert model.config.model_type == "qwen3"
    assert 800_000 < model.num_parameters() < 1_000_000
    with safe_open(POLICY / "model.safetensors", "pt") as stored:
        assert set(model.state_dict()) - set(stored.keys()) == {"lm_head.weight"}  # tied to the embeddings


@given(text=st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    template = ChatTemplate.load(POLICY)
    assert template.decode(template.encode(text)) == text


def test_everything_that_may_have_to_be_passed_on_is_made_of_whole_words(tokenizer: PreTrainedTokenizerFast) -> None:
    rng = rng_of(0)
    for _ in range(200):
        shown, _ = draw_list(rng)
        pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(shown)
        assert len(tokenizer.encode(shown)) == len(pieces), shown


@pytest.mark.parametrize("habits", [FAULTLESS, CARELESS])
async def test_the_clerk_was_recorded_in_the_tokens_that_the_harness_gives_the_policy(
    habits: Habits, desk: RealDesk, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    harness = Harness(ChatModel(FAMILIES["hermes"], POLICY), tmp_path)
    heard: set[str] = set()
    for seed in range(60_000_000, 60_000_030):
        task = make_task(seed)
        desk.furnish(task.office)
        messages = await work(task, desk, rng_of(seed), habits)
        lesson = conversation_lesson(tokenizer, [{"role": "user", "content": task.instruction}, *messages], desk.tools)
        heard |= {message["content"] for message in messages if message["role"] == "tool"}

        desk.furnish(task.office)
        workspace = Workspace(tmp_path / "workspace")
        sandbox = MemorySandbox({name: BUILDERS[name](workspace) for name in ("filesystem", "sheets", "code")})
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        agent = harness.agent(ScriptedEngine(harness.model.template, said), sandbox, context_length=CONTEXT_LENGTH)
        await agent.setup(sandbox)  # type: ignore[arg-type]  # MCP in memory and a place for uploads are all it needs
        await agent.run(task.instruction, sandbox, AgentContext())  # type: ignore[arg-type]
        (sequence,) = agent.record.sequences
        end_of_line = tokenizer.encode("\n")
        assert sequence.token_ids + end_of_line == lesson.token_ids
        assert [*sequence.loss_mask, 0] == [int(weight == 1.0) for weight in lesson.weights]
        harness.check(agent.record)
    assert any("was not made" in text for text in heard) == (habits is CARELESS)
    assert any("there is no column" in text for text in heard) == (habits is CARELESS)


def test_the_same_seed_makes_the_same_policy(tmp_path: Path) -> None:
    small = Recipe(num_demonstrations=40, repeating=Course(3, 4, decay=0.0), imitating=Course(3, 4, decay=0.4))
    made = []
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        (tmp_path / name).mkdir()
        shutil.copy(POLICY / "chat_template.jinja", tmp_path / name)
        make_policy(tmp_path / name, small, seed=seed)
        made.append([(tmp_path / name / file).read_bytes() for file in ("tokenizer.json", "model.safetensors")])
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_no_task_set_holds_a_demonstrated_task() -> None:
    demonstrated = range(FIRST_SEED, FIRST_SEED + SHIPPED.num_demonstrations)
    for first, count in SPLITS.values():
        assert first not in demonstrated
        assert first + count - 1 not in demonstrated


def test_the_policy_starts_its_work_with_a_tool_call(tokenizer: PreTrainedTokenizerFast) -> None:
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    tools = [{"type": "function", "function": {"name": f"{name}"}} for name in tool_names(tokenizer)]
    task = make_task(61_000_000)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": task.instruction}], tools=tools, tokenize=False, add_generation_prompt=True
    )
    prompt = tokenizer(text, return_tensors="pt").input_ids
    made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=64)
    turn = tokenizer.decode(made[0, prompt.shape[1] :])
    assert turn.startswith('<tool_call>\n{"name": "')
    assert turn.endswith("</tool_call><|im_end|>")


def tool_names(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The tools that the policy was taught with, which have tokens of their own."""
    servers = ("filesystem_", "sheets_", "code_")
    return sorted(token for token in tokenizer.get_vocab() if token.startswith(servers))
