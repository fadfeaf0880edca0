"""Loading and rendering chat templates."""

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_rollout.tito.template import ChatTemplate
from tests.chat_models import ChatModel

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "sheets_lookup",
            "description": "A cell of a table: größe <b>&</b>",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "call00000", "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [{"role": "user", "content": "What does the lamp cost?"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "価格は <b>?</b>"}],
    "tool": [
        {"role": "user", "content": "What does the lamp cost?"},
        {"role": "assistant", "content": "", "tool_calls": [call("sheets_lookup", path="Übung.csv")]},
        {"role": "tool", "tool_call_id": "call00000", "name": "sheets_lookup", "content": "3,50 €"},
    ],
    "second question": [
        {"role": "user", "content": "What does the lamp cost?"},
        {"role": "assistant", "content": "42", "reasoning_content": "Look it up."},
        {"role": "user", "content": "Sure?"},
    ],
}


@pytest.fixture(scope="session")
def reference_tokenizers(chat_models: dict[str, ChatModel]) -> dict[str, Any]:
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415  two seconds of CPU that only this file needs

    return {name: PreTrainedTokenizerFast.from_pretrained(model.path) for name, model in chat_models.items()}


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_rendering_and_tokenising_equal_transformers(
    model: ChatModel,
    reference_tokenizers: dict[str, Any],
    conversation: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "UTC")  # transformers tells templates the local date
    time.tzset()
    reference = reference_tokenizers[model.family.name]
    for prompted in (False, True):
        text = model.template.render(conversation, tools, generation_prompt=prompted)
        options = {"tools": tools, "add_generation_prompt": prompted}
        assert text == reference.apply_chat_template(conversation, tokenize=False, **options)
        ids = reference.apply_chat_template(conversation, tokenize=True, return_dict=False, **options)
        assert model.template.encode(text) == ids
        assert model.template.decode(ids) == reference.decode(ids)


def test_loading_needs_neither_torch_nor_transformers(qwen3: ChatModel) -> None:
    program = (
        "import sys; from pathlib import Path; from seatrial_rollout.tito.session import ChatTemplate\n"
        f"ChatTemplate.load(Path({str(qwen3.path)!r}))\n"
        "print(sorted({'torch', 'transformers', 'ray', 'harbor'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "[]"


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"has no tokenizer\.json"):
        ChatTemplate.load(tmp_path)


def test_a_broken_tokenizer_is_refused(qwen3: ChatModel, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen3.path, tmp_path / "model")
    (folder / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(InvalidInputError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        ChatTemplate.load(folder)


def test_a_tokenizer_without_chat_template_is_refused(qwen3: ChatModel, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen3.path, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(InvalidInputError, match="has no chat template"):
        ChatTemplate.load(folder)


def test_a_model_without_stop_token_is_refused(qwen3: ChatModel, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen3.path, tmp_path / "model")
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="names no token that ends a turn"):
        ChatTemplate.load(folder)


def test_a_broken_configuration_names_its_file(qwen3: ChatModel, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen3.path, tmp_path / "model")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(InvalidInputError, match=r"tokenizer_config\.json is not valid JSON"):
        ChatTemplate.load(folder)


def test_a_template_with_a_syntax_error_is_refused_when_it_is_loaded(qwen3: ChatModel, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen3.path, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(InvalidInputError, match="chat template is not valid Jinja: line 1"):
        ChatTemplate.load(folder)


def test_the_template_of_the_tokenizer_configuration_is_read(qwen3: ChatModel, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen3.path, tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    template = ChatTemplate.load(folder)
    assert template.render(CONVERSATIONS["question"], generation_prompt=True) == "plain"
    assert template.render(CONVERSATIONS["question"], TOOLS, generation_prompt=True) == "with tools"


def test_what_a_template_refuses_is_invalid_input(chat_models: dict[str, ChatModel]) -> None:
    two_calls = {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]}
    with pytest.raises(InvalidInputError, match="only supports single tool-calls"):
        chat_models["llama3"].template.render([*CONVERSATIONS["question"], two_calls], generation_prompt=True)


def test_a_template_cannot_reach_out_of_its_sandbox(qwen3: ChatModel, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen3.path, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InvalidInputError, match="unsafe"):
        ChatTemplate.load(folder).render(CONVERSATIONS["question"], generation_prompt=True)


def test_the_date_that_a_template_prints_stands_still(chat_models: dict[str, ChatModel]) -> None:
    template = chat_models["llama3"].template.at(datetime(2031, 5, 4, tzinfo=UTC))
    assert template.asks_for_the_time
    assert "Today Date: 04 May 2031" in template.render(CONVERSATIONS["question"], generation_prompt=True)
