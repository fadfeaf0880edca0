"""The model's chat template and tokenizer, read from its folder without importing transformers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, override

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from seatrial_api.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

type Message = dict[str, Any]
"""One chat message as templates read it: `role`, `content`, and where they apply `reasoning_content`,
`tool_calls` (arguments as an object) and `tool_call_id`."""

type ToolSchema = dict[str, Any]
"""One tool as templates read it: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


@dataclass(frozen=True)
class ChatTemplate:
    """Renders messages to text and text to token ids, exactly as `transformers.apply_chat_template` does."""

    tokenizer: Tokenizer
    sources: Mapping[str, str]
    """Jinja sources by name: `default`, and in some models `tool_use`."""
    special_tokens: Mapping[str, str]
    """What templates may ask for by name: `bos_token`, `eos_token`, ..."""
    stop_tokens: Mapping[str, int]
    """Text and id of every token that ends a turn."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))  # noqa: TID251  some templates print the date
    """The time that a template which asks for it is told; fixed, so that a conversation never changes by itself."""

    @classmethod
    def load(cls, model_path: Path) -> "ChatTemplate":
        """Read the template of the model in `model_path`; cached for the life of the process.

        Raises:
            InvalidInputError: The folder has no tokenizer, no chat template or no stop token.
        """
        return _load(model_path.resolve())

    def at(self, now: datetime) -> "ChatTemplate":
        """The same template at another time."""
        return replace(self, now=now)

    @property
    def source(self) -> str:
        """The Jinja source that is used when tools are given."""
        return self.sources.get("tool_use", self.sources["default"])

    @property
    def asks_for_the_time(self) -> bool:
        """Whether what is rendered depends on the date."""
        return "strftime_now" in self.source

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids of the tokens that end a turn."""
        return frozenset(self.stop_tokens.values())

    @cached_property
    def opens_reasoning(self) -> bool:
        """Whether the generation prompt itself opens the reasoning, so that a turn starts inside it."""
        prompt = self.render([{"role": "user", "content": "x"}], generation_prompt=True)
        return prompt.rstrip().endswith("<think>")

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] | None = None,
        *,
        generation_prompt: bool,
    ) -> str:
        """Text of a conversation, ending where the assistant is to speak if `generation_prompt` is set.

        Raises:
            InvalidInputError: The template refuses these messages.
        """
        name = "tool_use" if tools and "tool_use" in self.sources else "default"
        try:
            return self._compiled[name].render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self.special_tokens,
            )
        except (jinja2.TemplateError, TypeError) as exc:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise InvalidInputError(f"the chat template cannot render messages of roles {roles}: {exc}") from exc

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text; special tokens are recognised, none are added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens kept."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def compile(self) -> None:
        """Compile the Jinja sources, once; a process that is to be forked saves its children the work.

        Raises:
            InvalidInputError: A source is not valid Jinja.
        """
        try:
            _ = self._compiled
        except jinja2.TemplateSyntaxError as exc:
            raise InvalidInputError(f"the chat template is not valid Jinja: line {exc.lineno}: {exc.message}") from exc

    @cached_property
    def _compiled(self) -> dict[str, jinja2.Template]:
        environment = _environment(self.now)
        return {name: environment.from_string(source) for name, source in self.sources.items()}


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote; it leaves the text as it is."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own way to declare a tag

    @override
    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment(now: datetime) -> ImmutableSandboxedEnvironment:
    """The Jinja environment that chat templates are written for."""

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own filter escapes HTML, which no model was trained on.
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    helpers: dict[str, Callable[..., Any]] = {"raise_exception": raise_exception, "strftime_now": now.strftime}
    environment.globals.update(helpers)
    return environment


@lru_cache(maxsize=8)
def _load(model_path: Path) -> ChatTemplate:
    tokenizer_path = model_path / "tokenizer.json"
    if not tokenizer_path.is_file():
        raise InvalidInputError(
            f"model.source: {model_path} has no tokenizer.json; save the tokenizer there with save_pretrained()"
        )
    config = _read_json(model_path / "tokenizer_config.json")
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
    except Exception as exc:  # the library raises nothing more precise
        raise InvalidInputError(f"model.source: {tokenizer_path} cannot be read as a tokenizer: {exc}") from exc
    template = ChatTemplate(
        tokenizer=tokenizer,
        sources=_read_sources(model_path, config),
        special_tokens=_special_tokens(config),
        stop_tokens=_stop_tokens(model_path, config, tokenizer),
    )
    template.compile()
    return template


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text())
    except ValueError as exc:
        raise InvalidInputError(f"{path} is not valid JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise InvalidInputError(f"{path} holds a {type(content).__name__}, not an object")
    return content


def _read_sources(model_path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; files win over `tokenizer_config.json`, as in transformers."""
    declared = config.get("chat_template") or {}
    if isinstance(declared, str):
        declared = {"default": declared}
    elif isinstance(declared, list):
        declared = {entry["name"]: entry["template"] for entry in declared}
    sources = dict(declared)
    if (single := model_path / "chat_template.jinja").is_file():
        sources["default"] = single.read_text()
    for path in sorted((model_path / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = path.read_text()
    if "default" not in sources:
        raise InvalidInputError(
            f"model.source: the tokenizer in {model_path} has no chat template; put one into chat_template.jinja "
            "(a base model needs the template of the instruct model that it is to become)"
        )
    return sources


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Named special tokens; each is written as text or as an object with the text in `content`."""
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _stop_tokens(model_path: Path, config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, int]:
    """Tokens that end a turn: those of the generation config, else the model's, and the tokenizer's `eos_token`."""
    declared = _read_json(model_path / "generation_config.json").get("eos_token_id")
    if declared is None:
        declared = _read_json(model_path / "config.json").get("eos_token_id")
    ids = [declared] if isinstance(declared, int) else list(declared or ())
    if (eos := _special_tokens(config).get("eos_token")) is not None:
        ids.append(tokenizer.token_to_id(eos))
    texts = {token_id: tokenizer.id_to_token(token_id) for token_id in ids if token_id is not None}
    tokens = {text: token_id for token_id, text in texts.items() if text is not None}
    if not tokens:
        raise InvalidInputError(
            f"model.source: {model_path} names no token that ends a turn; set eos_token_id in generation_config.json"
        )
    return tokens
