"""Finished groups to mini-batches whose gradient is decided: what each trajectory earned, and what its tokens weigh."""

from seatrial_api.spec.algorithm import AlgorithmSpec
from seatrial_api.spec.data import Domain
from seatrial_api.trajectory import Trajectory
from seatrial_trainer.algorithms.aggregation import token_weights
from seatrial_trainer.algorithms.credit import Credit, assign_credit
from seatrial_trainer.policy.batch import Minibatch, TrainingSequence
from seatrial_trainer.policy.routing import routed_experts


def build_minibatches(
    groups: list[list[Trajectory]],
    algorithm: AlgorithmSpec,
    domains: list[Domain],
    *,
    max_tokens: int | None = None,
    version: int | None = None,
) -> list[Minibatch]:
    """The optimiser steps of one training batch, `minibatch_size` groups each, in the order given.

    Means are over what enters the loss: a group that is left out is not counted in the denominators. A mini-batch of
    which nothing is left is not made, for a step without gradient would still move the weights by momentum and decay.

    Args:
        groups: Trajectories by group; infrastructure failures may be among them and are passed over.
        algorithm: The training algorithm.
        domains: Domains with a KL coefficient of their own.
        max_tokens: Constant length of `seq_mean_token_sum_norm`; the context length for training.
        version: Version of the policy's weights before the first of these steps.

    Raises:
        InvalidInputError: the advantage is not defined for a group's rewards.
    """
    size = algorithm.minibatch_size or max(len(groups), 1)
    coefficients = {d.name: d.kl_coefficient for d in domains if d.kl_coefficient is not None}
    minibatches: list[Minibatch] = []
    for start in range(0, len(groups), size):
        credits_ = [assign_credit(group, algorithm) for group in groups[start : start + size]]
        trained = [[credit for credit in group if credit.left_out is None] for group in credits_]
        counts = [[credit.trajectory.num_sampled for credit in group] for group in trained]
        weights = token_weights(counts, algorithm.aggregation, max_tokens=max_tokens)
        sequences = [
            sequence
            for group, group_weights in zip(trained, weights, strict=True)
            for credit, weight in zip(group, group_weights, strict=True)
            for sequence in _training_sequences(
                credit, weight, coefficients.get(credit.trajectory.domain, algorithm.kl.coefficient)
            )
        ]
        if sequences:
            fresh_version = None if minibatches else version
            minibatches.append(Minibatch(sequences, algorithm.loss, algorithm.kl.estimator, fresh_version))
    return minibatches


def _training_sequences(credit: Credit, weight: float, kl_coefficient: float) -> list[TrainingSequence]:
    return [
        TrainingSequence(
            token_ids=sequence.token_ids,
            loss_mask=sequence.loss_mask,
            logprobs=sequence.logprobs,
            advantage=credit.advantage,
            weight=weight,
            kl_coefficient=kl_coefficient,
            weight_versions=sequence.weight_versions,
            routed_experts=routed_experts(sequence.routed_experts, len(sequence.token_ids)),
        )
        for sequence in credit.trajectory.sequences
        if sequence.num_sampled
    ]
