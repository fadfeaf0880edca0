"""The weighted loss of sampled tokens, the same in every backend."""

import torch
from torch import Tensor

from seatrial_trainer.algorithms.losses import kl_penalty, policy_loss
from seatrial_trainer.policy.batch import Minibatch
from seatrial_trainer.policy.step_totals import StepTotals
from seatrial_trainer.policy.token_tensors import TokenTensors


def weighted_loss(
    tokens: TokenTensors, logprobs: Tensor, entropy: Tensor, minibatch: Minibatch, totals: StepTotals
) -> Tensor:
    """Sum over the tokens of weight x (loss + KL penalty), counted into the totals.

    Args:
        tokens: What is known of each token.
        logprobs: log p of each, with gradient.
        entropy: Of the distribution that each was drawn from, without.
        minibatch: Names the loss and the estimator of the KL.
        totals: Takes the figures.
    """
    everywhere = torch.ones_like(logprobs, dtype=torch.bool)
    result = policy_loss(logprobs, tokens.rollout_logprobs, tokens.advantages, everywhere, minibatch.loss)
    if tokens.reference_logprobs is None:
        kl = torch.zeros_like(logprobs)
    else:
        kl = kl_penalty(logprobs, tokens.reference_logprobs, tokens.kl_coefficients > 0, minibatch.kl_estimator)
    loss = (tokens.weights * (result.loss + tokens.kl_coefficients * kl)).sum()
    totals.add_tokens(tokens, loss=loss, logprobs=logprobs, entropy=entropy, clipped=result.clipped, kl=kl)
    return loss
