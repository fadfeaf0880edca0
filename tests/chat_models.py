"""Model folders for tests: tokenizers and chat templates shaped like those of real model families, no weights."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from seatrial_rollout.tito.template import ChatTemplate

TEMPLATES = Path(__file__).parent / "data" / "chat_templates"

_CORPUS = [
    "You are given tools. Read the table, look up the price of the lamp and write the answer into the file.",
    '{"name": "sheets_lookup", "arguments": {"path": "prices.csv", "row": "lamp", "column": "price"}}',
    "The total is 42. Der Preis für die Übung beträgt 3,50 €. 価格は十円です。 цена лампы",
    "assistant user system tool observation Environment: ipython think reasoning response",
] * 20


@dataclass(frozen=True)
class Family:
    """How one family of models writes conversations."""

    name: str
    stop_tokens: Sequence[str]
    special: Sequence[str]
    added: Sequence[str] = ()
    """Tokens that are added but count as text: tags of tools and reasoning."""
    config: dict[str, Any] = field(default_factory=dict)

    def text_of_call(self, name: str, arguments: dict[str, Any]) -> str:
        """A tool call as a model of this family writes it."""
        written = json.dumps(arguments, ensure_ascii=False)
        match self.name:
            case "llama3":
                return f'{{"name": "{name}", "parameters": {written}}}'
            case "glm4":
                return f"{name}\n{written}"
            case _:
                return f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'

    def text_of_calls(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        """Several calls in one turn."""
        between = {"llama3": "; ", "glm4": "<|assistant|>"}.get(self.name, "\n")
        return between.join(self.text_of_call(*call) for call in calls)

    def stop_after_call(self) -> str:
        """The stop token behind a turn that calls tools."""
        return "<|observation|>" if self.name == "glm4" else self.stop_tokens[0]


_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

FAMILIES = {
    family.name: family
    for family in (
        Family(
            "qwen3",
            ("<|im_end|>", "<|endoftext|>"),
            ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
            (*_TAGS, "<think>", "</think>"),
            {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        ),
        Family(
            "llama3",
            ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
            (
                *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
                *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
            ),
            (),
            {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        ),
        Family(
            "glm4",
            ("<|user|>", "<|observation|>", "<|endoftext|>"),
            ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
            (),
            {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
        ),
        Family(
            "hermes",
            ("<|im_end|>",),
            ("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"),
            _TAGS,
            {"bos_token": {"__type": "AddedToken", "content": "<|begin_of_text|>"}, "eos_token": "<|im_end|>"},
        ),
    )
}


def make_tokenizer(family: Family) -> Tokenizer:
    """A byte-level BPE tokenizer with the family's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.added])
    return tokenizer


def write_model(family: Family, folder: Path) -> Path:
    """Put the family's tokenizer files and chat template into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(family)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **family.config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    stops = [tokenizer.token_to_id(token) for token in family.stop_tokens]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    (folder / "chat_template.jinja").write_text((TEMPLATES / f"{family.name}.jinja").read_text())
    return folder


@dataclass(frozen=True)
class ChatModel:
    """A family and the folder that holds a model of it."""

    family: Family
    path: Path

    @property
    def template(self) -> ChatTemplate:
        """The template as the product loads it."""
        return ChatTemplate.load(self.path)
