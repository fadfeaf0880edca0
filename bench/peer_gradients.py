"""Gradients of our losses under every aggregation, and our advantages, against SkyRL's and TRL's own code.

Random batches in 64 bits: prompts of several trials, masks with holes, log ratios far past every bound. C and
denominators are matched; where a framework has no such pair of loss and aggregation there is no line.

    python -m bench.peer_gradients FOLDER [--batches N]

FOLDER holds the packages:

    pip install --no-deps --target FOLDER skyrl==0.4.0 trl==1.16.0 accelerate cloudpathlib omegaconf
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial_api.spec.algorithm import AdvantageSpec, AggregationName, LossSpec
from seatrial_trainer.algorithms.advantages import advantages
from seatrial_trainer.algorithms.aggregation import token_weights
from seatrial_trainer.algorithms.losses import kl_penalty, policy_loss

NUM_PROMPTS, GROUP_SIZE, LENGTH, MAX_TOKENS = 3, 4, 12, 50
KL_COEFFICIENT = 0.1
NO_CAP = 1e9
CORRECTIONS = [
    *("tis_ratio_type", "sequence_mask_metric"),
    *("outlier_token_is_threshold_low", "outlier_token_is_threshold_high"),
    *("token_mask_is_threshold_low", "token_mask_is_threshold_high"),
]
"""SkyRL's corrections on top of a loss, all off."""


@dataclass(frozen=True, slots=True)
class RandomBatch:
    """Trials of some prompts, a row each."""

    mask: Tensor
    logprobs: Tensor
    rollout: Tensor
    reference: Tensor
    rewards: Tensor

    @classmethod
    def draw(cls, seed: int) -> "RandomBatch":
        """Any batch in which every row has a sampled token."""
        rng = torch.Generator().manual_seed(seed)
        shape = (NUM_PROMPTS * GROUP_SIZE, LENGTH)
        mask = torch.rand(shape, generator=rng, dtype=torch.float64).lt(0.6).double()
        mask[:, 0] = 1.0
        rollout = -2.0 * torch.rand(shape, generator=rng, dtype=torch.float64) - 0.05
        drift = 0.6 * torch.randn(shape, generator=rng, dtype=torch.float64)
        reference = rollout + 0.3 * torch.randn(shape, generator=rng, dtype=torch.float64)
        rewards = torch.rand(shape[0], generator=rng, dtype=torch.float64)
        return cls(mask, (rollout + drift).clamp(max=-1e-3), rollout, reference, rewards)

    @property
    def advantages(self) -> Tensor:
        """One a row, as SkyRL and we both have them."""
        spec = AdvantageSpec(name="grpo", normalize_std=True)
        return self.rewards.new_tensor([a for group in self.groups for a in advantages(group, spec)])

    @property
    def groups(self) -> list[list[float]]:
        """Rewards by prompt."""
        return [list(map(float, group)) for group in self.rewards.view(NUM_PROMPTS, GROUP_SIZE)]


@dataclass(frozen=True, slots=True)
class Pairing:
    """One of our losses under one aggregation, and whose it is held against."""

    peer: str
    loss: LossSpec
    aggregation: AggregationName
    gradient: Callable[[RandomBatch], Tensor]
    """The peer's, by log p."""
    kl: float = 0.0


def ours(batch: RandomBatch, pairing: Pairing) -> Tensor:
    """Our gradient by log p."""
    logprobs = batch.logprobs.clone().requires_grad_()
    is_in = batch.mask.bool().flatten()
    losses = policy_loss(
        logprobs.flatten(), batch.rollout.flatten(), batch.advantages.repeat_interleave(LENGTH), is_in, pairing.loss
    ).loss
    losses = losses + pairing.kl * kl_penalty(logprobs.flatten(), batch.reference.flatten(), is_in, "k3")
    counts = batch.mask.sum(1).long().view(NUM_PROMPTS, GROUP_SIZE).tolist()
    weights = token_weights(counts, pairing.aggregation, max_tokens=MAX_TOKENS)
    per_row = torch.tensor([w for group in weights for w in group], dtype=torch.float64)
    return _by(logprobs, (per_row.repeat_interleave(LENGTH) * losses).sum())


class SkyRL:
    """SkyRL's loss registry and its scaling of advantages."""

    def __init__(self) -> None:
        self._utils = importlib.import_module("skyrl.backends.skyrl_train.utils.ppo_utils")
        no_correction = SimpleNamespace(**dict.fromkeys(CORRECTIONS))
        self._config = {
            "dppo": SimpleNamespace(dppo_type="binary_tv", delta_low=0.15, delta_high=0.15),
            "off_policy_correction": no_correction,
        }

    def pairings(self) -> Iterator[Pairing]:
        """Three losses under four aggregations."""
        losses = {
            "dppo": LossSpec(name="dppo", ratio_cap=NO_CAP),
            "regular": LossSpec(name="ppo-clip", low=0.2, high=0.28),
            "rollout_is": LossSpec(name="glm5", low=0.5, high=4.0),
        }
        names: tuple[AggregationName, ...] = ("token_mean", "sequence_mean", "seq_mean_token_sum_norm", "prompt_mean")
        for theirs, loss in losses.items():
            for name in names:
                yield Pairing("SkyRL", loss, name, self._gradient(theirs, loss, name))

    def advantages(self, batch: RandomBatch, name: str, *, by_std: bool) -> list[float]:
        """SkyRL's estimator over the batch's rewards."""
        rewards = torch.zeros_like(batch.mask)
        rewards[:, -1] = batch.rewards
        index = np.arange(NUM_PROMPTS).repeat(GROUP_SIZE)
        found, _ = self._utils.compute_advantages_and_returns(
            rewards, torch.ones_like(batch.mask), index, name, SimpleNamespace(), grpo_norm_by_std=by_std
        )
        return [float(value) for value in found[:, 0]]

    def _gradient(self, name: str, loss: LossSpec, aggregation: AggregationName) -> Callable[[RandomBatch], Tensor]:
        config = SimpleNamespace(**self._config, eps_clip_low=loss.low, eps_clip_high=loss.high, policy_loss_type=name)
        boundaries = [(GROUP_SIZE * i, GROUP_SIZE * (i + 1)) for i in range(NUM_PROMPTS)]

        def gradient(batch: RandomBatch) -> Tensor:
            logprobs = batch.logprobs.clone().requires_grad_()
            scaled = self._utils.apply_loss_reduction_to_advantages_minibatch(
                batch.advantages[:, None].expand_as(batch.mask),
                batch.mask,
                aggregation,
                len(batch.mask),
                MAX_TOKENS,
                boundaries,
            )
            total, _ = self._utils.PolicyLossRegistry.get(name)(
                logprobs, batch.rollout, scaled, config, batch.mask, batch.rollout
            )
            return _by(logprobs, total)

        return gradient


class TRL:
    """GRPOTrainer's loss without a trainer: everything that it reads of itself is given."""

    def __init__(self) -> None:
        self._loss = importlib.import_module("trl.trainer.grpo_trainer").GRPOTrainer._compute_loss  # noqa: SLF001  under comparison

    def pairings(self) -> Iterator[Pairing]:
        """PPO under three aggregations and with a KL, TIS, and MIS on top of unchanged weights."""
        clip = LossSpec(name="ppo-clip", low=0.2, high=0.28)
        tis, mis = LossSpec(name="tis", ratio_cap=2.0), LossSpec(name="mis", low=0.5, high=1.0)
        yield Pairing("TRL", clip, "token_mean", self._gradient("dapo", clip))
        yield Pairing("TRL", clip, "sequence_mean", self._gradient("grpo", clip))
        yield Pairing("TRL", clip, "seq_mean_token_sum_norm", self._gradient("dr_grpo", clip))
        yield Pairing("TRL", clip, "sequence_mean", self._gradient("grpo", clip, KL_COEFFICIENT), KL_COEFFICIENT)
        yield Pairing("TRL", tis, "token_mean", self._gradient("cispo", LossSpec(name="tis", high=2.0)))
        yield Pairing("TRL", mis, "sequence_mean", self._gradient("grpo", mis))

    def _gradient(self, kind: str, loss: LossSpec, kl: float = 0.0) -> Callable[[RandomBatch], Tensor]:
        def gradient(batch: RandomBatch) -> Tensor:
            logprobs = batch.logprobs.clone().requires_grad_()
            given: dict[str, Any] = {
                "prompt_ids": torch.zeros(len(batch.mask), 1),
                "prompt_mask": torch.ones(len(batch.mask), 1),
                "completion_ids": torch.zeros_like(batch.mask),
                "completion_mask": batch.mask,
                "advantages": batch.advantages,
                "ref_per_token_logps": batch.reference,
                "num_items_in_batch": batch.mask.sum(),
            }
            if loss.name == "mis":
                ratio = (batch.logprobs - batch.rollout).exp()
                is_in = (ratio >= 1 - loss.low) & (ratio <= 1 + loss.high)
                given["importance_sampling_ratio"] = torch.where(is_in, ratio, 0.0)
            else:
                given["old_per_token_logps"] = batch.rollout
            return _by(logprobs, self._loss(_trainer(logprobs, kind, loss, kl), None, given))

        return gradient


def _trainer(logprobs: Tensor, kind: str, loss: LossSpec, kl: float) -> SimpleNamespace:
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        _entropy_bonus_enabled=False,
        _metrics={"eval": _Unread()},
        accelerator=SimpleNamespace(num_processes=1, gather=_alone, reduce=_alone),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False),
        aux_loss_enabled=False,
        beta=kl,
        current_gradient_accumulation_steps=1,
        epsilon_high=loss.high,
        epsilon_low=loss.low,
        importance_sampling_level="token",
        loss_type=kind,
        max_completion_length=MAX_TOKENS,
        model=SimpleNamespace(training=False),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=loss.name == "mis",
        vllm_importance_sampling_correction=True,
    )


def _alone(tensor: Tensor, **_: Any) -> Tensor:
    """What one process hears from all."""
    return tensor


class _Unread(dict[str, list[float]]):
    """Metrics that nobody reads."""

    def __missing__(self, _name: str) -> list[float]:
        return []


def _by(logprobs: Tensor, loss: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, logprobs)
    return found


def worst(batches: list[RandomBatch], pairing: Pairing) -> tuple[float, float]:
    """Largest difference of a gradient, as a share of the batch's largest, and the mean share of tokens with one."""
    differences, shares = [], []
    for batch in batches:
        found, expected = ours(batch, pairing), pairing.gradient(batch)
        differences.append(float((found - expected).abs().max() / expected.abs().max()))
        shares.append(float(expected.count_nonzero() / batch.mask.sum()))
    return max(differences), sum(shares) / len(shares)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds the packages")
    parser.add_argument("--batches", type=int, default=200)
    arguments = parser.parse_args()
    sys.path += [str(arguments.folder), str(arguments.folder / "skyrl-gym")]
    skyrl, trl = SkyRL(), TRL()
    batches = [RandomBatch.draw(seed) for seed in range(arguments.batches)]
    print(f"{len(batches)} batches.\n\n| loss | aggregation | against | largest difference | tokens with a gradient |")
    print("|---|---|---|---|---|")
    for pairing in (*skyrl.pairings(), *trl.pairings()):
        difference, share = worst(batches, pairing)
        loss = f"`{pairing.loss.name}`{' and KL' if pairing.kl else ''}"
        print(f"| {loss} | `{pairing.aggregation}` | {pairing.peer} | {difference:.1e} | {share:.0%} |")
    print("\n| advantage | against | largest difference |\n|---|---|---|")
    specs = {
        "grpo": AdvantageSpec(name="grpo"),
        "grpo, by std": AdvantageSpec(name="grpo", normalize_std=True),
        "rloo": AdvantageSpec(name="rloo"),
        "maxrl": AdvantageSpec(name="maxrl"),
    }
    for name, spec in specs.items():
        difference = 0.0
        for batch in batches:
            found = [a for group in batch.groups for a in advantages(group, spec)]
            expected = skyrl.advantages(batch, spec.name, by_std=spec.normalize_std)
            difference = max(difference, *(abs(a - b) for a, b in zip(found, expected, strict=True)))
        print(f"| {name} | SkyRL | {difference:.1e} |")


if __name__ == "__main__":
    main()
