"""Tiny models on disk, and trajectories for them."""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from seatrial_api.spec.algorithm import OptimizerSpec
from seatrial_api.spec.backend import TrainerSpec
from seatrial_api.spec.model import ContextLength, LoRA, ModelSpec, Source
from seatrial_trainer.policy.batch import TrainingSequence
from seatrial_trainer.policy.setup import PolicySetup

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
FIELDS: dict[str, dict[str, Any]] = {
    "Qwen3Config": {"head_dim": 8, "tie_word_embeddings": True},
    "Qwen3MoeConfig": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "Qwen3_5TextConfig": {  # three layers in four are recurrent
        "num_hidden_layers": 4,
        "head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}
"""What an architecture has besides."""

MakeModel = Callable[..., Path]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """Write a random model of some architecture to disk, once."""
    made: dict[str, Path] = {}

    def make(config_class: str = "Qwen3Config", **fields: Any) -> Path:
        import transformers  # noqa: PLC0415  only where a model is made
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

        disable_progress_bar()
        key = f"{config_class} {sorted(fields.items())}"
        if key not in made:
            torch.manual_seed(0)
            config = getattr(transformers, config_class)(**SIZES | FIELDS.get(config_class, {}) | fields)
            made[key] = tmp_path_factory.mktemp("model")
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(made[key])
        return made[key]

    return make


@pytest.fixture(scope="session")
def model_path(make_model: MakeModel) -> Path:
    """A tiny Qwen3."""
    return make_model()


def make_setup(
    dtype: str = "float32", learning_rate: float = 1e-2, lora: LoRA | None = None, **trainer: Any
) -> PolicySetup:
    return PolicySetup(
        model=ModelSpec(source=Source(path="unused"), dtype=dtype, context_length=ContextLength(train=256), lora=lora),
        trainer=TrainerSpec(**trainer),
        optimizer=OptimizerSpec(learning_rate=learning_rate),
    )


def make_sequences(num_groups: int = 3, group_size: int = 4, *, seed: int = 0, **fields: Any) -> list[TrainingSequence]:
    """Groups that share a prompt; turns of the policy and of tools alternate."""
    rng = random.Random(seed)  # noqa: S311  a test's numbers

    def tokens(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    sequences = []
    for _ in range(num_groups):
        prompt = tokens(rng.randint(3, 9))
        for _ in range(group_size):
            ids, mask = list(prompt), [0] * len(prompt)
            for _ in range(rng.randint(1, 3)):
                sampled, observed = rng.randint(1, 6), rng.randint(0, 5)
                ids += tokens(sampled + observed)
                mask += [1] * sampled + [0] * observed
            logprobs = [-4.1 + rng.gauss(0, 0.3) if m else 0.0 for m in mask]
            sequences.append(
                TrainingSequence(
                    ids, mask, logprobs, advantage=rng.gauss(0, 1), weight=rng.uniform(0.01, 0.03), **fields
                )
            )
    return sequences


@contextmanager
def local_ray(num_cpus: int) -> Iterator[None]:
    """A Ray of a test's own, of which nothing is left."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=128 << 20,
        _temp_dir=folder,
    )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
