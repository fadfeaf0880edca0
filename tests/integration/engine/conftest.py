"""Models and reference values for tests against a real vLLM."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def model_a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "a", seed=1)


@pytest.fixture(scope="session")
def model_b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "b", seed=2)


def load_reference(path: Path) -> Any:
    """The model as Hugging Face transformers runs it, in float32."""
    return Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@torch.no_grad()
def reference_logprobs(model: Any, prompt: list[int], output: list[int], *, temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each output token given all before it."""
    logits = model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
    return _picked(logits, output, temperature)


@torch.no_grad()
def mixed_logprobs(old: Any, new: Any, prompt: list[int], output: list[int], boundary: int) -> torch.Tensor:
    """Log-probabilities from `boundary` on, by the new model over keys and values of the old one.

    The token before the boundary was sampled by the old model and read by the new one.
    """
    seen = [*prompt, *output[: boundary - 1]]
    cache = old(torch.tensor([seen]), use_cache=True).past_key_values
    rest = torch.tensor([output[boundary - 1 : -1]])
    logits = new(rest, past_key_values=cache, use_cache=True).logits[0]
    return _picked(logits, output[boundary:], 1.0)


def _picked(logits: torch.Tensor, tokens: list[int], temperature: float) -> torch.Tensor:
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]
