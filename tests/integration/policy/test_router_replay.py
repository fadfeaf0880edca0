"""With the engine's experts replayed, megatron-core's log probabilities are the engine's, in any layout."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seatrial_api.errors import InvalidInputError
from seatrial_trainer.policy.batch import TrainingSequence
from seatrial_trainer.policy.megatron.layout import check_layout
from seatrial_trainer.policy.routing import UNKNOWN
from tests.integration.policy.conftest import MakeModel, make_sequences, make_setup
from tests.megatron_ranks import NUM_RANKS, Case, Seen, run

pytestmark = pytest.mark.timeout(600)

NUM_EXPERTS, NUM_CHOSEN, NUM_LAYERS = 4, 2, 2
NUM_UNKNOWN = 2
"""Tokens at the beginning of each sequence whose experts the engine does not say."""

REPLAYED = {
    "tensor": {"parallelism": {"tensor": 2}},
    "pipeline-recomputed": {"parallelism": {"pipeline": 2}, "recompute": "Full"},
    "experts": {"parallelism": {"expert": 2}},
}
OWN = "own-choices"


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> Path:
    experts = {"num_experts": NUM_EXPERTS, "num_experts_per_tok": NUM_CHOSEN}
    return make_model("Qwen3MoeConfig", norm_topk_prob=True, initializer_range=0.2, **experts)


@pytest.fixture(scope="module")
def seen(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    sequences = sampled_by_another(model, make_sequences())
    cases = [
        case(name, model, sequences, max_tokens_per_microbatch=64, router_replay=True, **trainer)
        for name, trainer in REPLAYED.items()
    ]
    cases.append(case(OWN, model, sequences, max_tokens_per_microbatch=64))
    return run(cases, tmp_path_factory.mktemp("ranks"))


def case(name: str, model: Path, sequences: list[TrainingSequence], **trainer: Any) -> Case:
    setup = make_setup(backend="megatron", ranks=NUM_RANKS, **trainer)
    return Case.of(name, setup, model, sequences)


@pytest.mark.parametrize("name", REPLAYED)
def test_replayed_log_probabilities_are_the_engines(name: str, seen: dict[str, Seen]) -> None:
    first = seen[name].steps[0]
    assert first["logprob_abs_diff_max"] < 1e-5
    assert first["kl_to_reference"] == pytest.approx(0.0, abs=1e-9)  # the same weights with the same experts


def test_without_replay_they_are_not(seen: dict[str, Seen]) -> None:
    assert seen[OWN].steps[0]["logprob_abs_diff_max"] > 1e-2


@pytest.mark.parametrize("name", list(REPLAYED)[1:])
def test_layers_that_run_again_in_the_backward_pass_choose_as_before(name: str, seen: dict[str, Seen]) -> None:
    for one, other in zip(seen[name].steps, seen["tensor"].steps, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


def test_a_model_without_experts_is_refused_by_field(model_path: Path) -> None:
    from transformers import AutoConfig  # noqa: PLC0415  heavy

    setup = make_setup(backend="megatron", router_replay=True)
    with pytest.raises(InvalidInputError, match=r"trainer\.routerReplay: .*no experts"):
        check_layout(AutoConfig.from_pretrained(model_path), setup.trainer)


def sampled_by_another(model: Path, sequences: list[TrainingSequence]) -> list[TrainingSequence]:
    """The sequences as an engine would return them whose routers choose otherwise."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  heavy

    module = AutoModelForCausalLM.from_pretrained(model)
    rng = np.random.default_rng(0)
    found = []
    for sequence in sequences:
        shape = (len(sequence.token_ids), NUM_LAYERS, NUM_EXPERTS)
        choices = rng.random(shape).argsort(-1)[..., :NUM_CHOSEN].astype(np.int32)
        choices[:NUM_UNKNOWN] = UNKNOWN
        logprobs = forced_logprobs(module, sequence.token_ids, choices)
        masked = [logprob if mask else 0.0 for logprob, mask in zip(logprobs, sequence.loss_mask, strict=True)]
        found.append(replace(sequence, logprobs=masked, routed_experts=choices))
    return found


@torch.no_grad()
def forced_logprobs(module: Any, token_ids: list[int], choices: np.ndarray) -> list[float]:
    """Of each token after the first, where every layer's tokens go to these experts."""

    def force(layer: int) -> Any:
        def hook(
            _gate: nn.Module, _inputs: Any, output: tuple[Tensor, Tensor, Tensor]
        ) -> tuple[Tensor, Tensor, Tensor]:
            logits, _, own = output
            experts = torch.from_numpy(choices[:, layer]).long()
            experts = torch.where(experts == UNKNOWN, own, experts)
            return logits, logits.gather(1, experts).softmax(-1), experts

        return hook

    hooks = [layer.mlp.gate.register_forward_hook(force(i)) for i, layer in enumerate(module.model.layers)]
    try:
        logits = module(torch.tensor([token_ids])).logits[0]
    finally:
        for hook in hooks:
            hook.remove()
    picked = logits[:-1].log_softmax(-1).gather(1, torch.tensor(token_ids)[1:, None])[:, 0]
    return [0.0, *picked.tolist()]
