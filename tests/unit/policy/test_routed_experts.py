"""What an engine says of its experts reaches the trainer token by token."""

import base64
import io
import json

import numpy as np
import pytest

from seatrial_api.errors import CorruptionError
from seatrial_api.trajectory import RoutedExperts
from seatrial_rollout.engine.generation import GenerationRequest
from seatrial_rollout.engine.wire import read_vllm_answer, vllm_body
from seatrial_rollout.tito.log import TokenLog
from seatrial_trainer.policy.routing import UNKNOWN, routed_experts


def choices(num_tokens: int, first: int) -> np.ndarray:
    """Two layers, one expert of each token, all different."""
    return (first + np.arange(2 * num_tokens, dtype=np.uint8)).reshape(num_tokens, 2, 1)


def as_vllm_writes(array: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return base64.b64encode(buffer.getvalue()).decode()


def answer(token_ids: list[int], experts: np.ndarray | None) -> bytes:
    choice = {
        "token_ids": token_ids,
        "finish_reason": "stop",
        "logprobs": {"content": [{"logprob": -1.0} for _ in token_ids]},
        "weight_versions": [{"version": "3", "start": 0, "end": len(token_ids)}],
        "routed_experts": None if experts is None else as_vllm_writes(experts),
    }
    return json.dumps({"choices": [choice], "usage": {}}).encode()


def test_each_turn_asks_for_what_the_turns_before_did_not_say() -> None:
    log = TokenLog()
    log.start([1, 2, 3])
    log.sample(read_vllm_answer(answer([4, 5], choices(4, first=0))), routed_from=log.num_routed())
    log.give([6, 7])
    request = GenerationRequest(log.token_ids, max_tokens=2, temperature=1.0, routed_from=log.num_routed())
    assert json.loads(vllm_body(request, "salt"))["sampling_params"]["routed_experts_prompt_start"] == 4
    log.sample(read_vllm_answer(answer([8, 9], choices(4, first=8))), routed_from=request.routed_from)

    (sequence,) = log.sequences()
    found = routed_experts(sequence.routed_experts, len(sequence.token_ids))
    assert found is not None
    assert found[:8].tolist() == choices(8, first=0).tolist()
    assert found[8:].tolist() == [[[UNKNOWN], [UNKNOWN]]]  # sampled last, and read by no engine


def test_an_engine_that_says_nothing_leaves_nothing() -> None:
    log = TokenLog()
    log.start([1, 2, 3])
    log.sample(read_vllm_answer(answer([4], None)))
    assert log.num_routed() == 0
    assert routed_experts(log.sequences()[0].routed_experts, 4) is None


def test_a_branch_asks_for_all_of_its_tokens_again() -> None:
    log = TokenLog()
    log.start([1, 2, 3])
    log.sample(read_vllm_answer(answer([4], choices(3, first=0))))
    log.start([5], inherited=3)
    assert log.num_routed() == 0


@pytest.mark.parametrize(
    "data", ["not base64!", base64.b64encode(b"not an array").decode(), as_vllm_writes(choices(5, 0))]
)
def test_experts_that_do_not_fit_their_sequence_are_refused(data: str) -> None:
    with pytest.raises(CorruptionError, match="tokens from 1 on, of 4"):
        routed_experts([RoutedExperts(start=1, data=data)], 4)
