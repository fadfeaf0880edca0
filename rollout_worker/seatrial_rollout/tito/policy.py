"""The policy that a conversation is held with."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Policy:
    """The model as the harness sees it."""

    model_path: Path
    """Folder with tokenizer and chat template."""
    context_length: int
    """Tokens that a conversation may hold."""
    tool_call_format: str = "Auto"
    """`hermes`, `llama3_json`, `glm4`, or `Auto` to tell it from the chat template."""
