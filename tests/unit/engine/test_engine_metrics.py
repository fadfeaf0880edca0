"""Reading vLLM's metrics."""

import pytest

from seatrial_rollout.engine.metrics import PoolMetrics, combine, parse_metrics, retired
from seatrial_rollout.engine.supervision import HangLimits, ProgressWatch

VLLM_TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="policy"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="policy",reason="capacity"} 7.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="policy"} 1.0
vllm:num_preemptions_created{engine="0",model_name="policy"} 1.7960149567939498e+09
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="policy"} 120.0
# TYPE vllm:prompt_tokens_cached counter
vllm:prompt_tokens_cached_total{engine="0",model_name="policy"} 64.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="policy"} 12.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="1024",enable_prefix_caching="True"} 1.0
"""

EXPECTED = PoolMetrics(
    kv_usage=0.25,
    running=3,
    waiting=2,
    preemptions_total=1,
    prompt_tokens_total=120,
    cached_tokens_total=64,
    generated_tokens_total=12,
    kv_capacity_tokens=131072,
)


def test_metrics_are_read_by_their_exact_names() -> None:
    assert parse_metrics(VLLM_TEXT) == EXPECTED


def test_data_parallel_ranks_add_up_and_their_usage_is_averaged() -> None:
    both = parse_metrics(VLLM_TEXT + VLLM_TEXT.replace('engine="0"', 'engine="1"').replace(" 0.25", " 0.75"))

    assert both.kv_usage == pytest.approx(0.5)
    assert both.generated_tokens_total == 24


def test_an_empty_page_is_no_metrics() -> None:
    assert parse_metrics("") == PoolMetrics()


def test_usage_of_engines_is_weighted_by_their_capacity() -> None:
    small = PoolMetrics(kv_usage=1.0, kv_capacity_tokens=100, running=1)
    large = PoolMetrics(kv_usage=0.0, kv_capacity_tokens=300, running=2)

    combined = combine([small, large])

    assert combined.kv_usage == pytest.approx(0.25)
    assert (combined.running, combined.kv_capacity_tokens) == (3, 400)


def test_counters_outlive_the_server_and_gauges_do_not() -> None:
    assert retired(EXPECTED) == PoolMetrics(
        preemptions_total=1, prompt_tokens_total=120, cached_tokens_total=64, generated_tokens_total=12
    )


def test_a_server_that_has_requests_and_does_nothing_is_stalled() -> None:
    watch = ProgressWatch(HangLimits(stall_seconds=10))
    stuck = PoolMetrics(running=1, generated_tokens_total=5)

    observations = [watch.is_stalled(stuck, now=now, may_run=True) for now in (0.0, 9.0, 11.0)]

    assert observations == [False, False, True]


@pytest.mark.parametrize(
    ("metrics", "may_run"),
    [
        (PoolMetrics(running=1, generated_tokens_total=6), True),
        (PoolMetrics(running=1, prompt_tokens_total=1, generated_tokens_total=5), True),
        (PoolMetrics(running=0, generated_tokens_total=5), True),
        (PoolMetrics(running=1, generated_tokens_total=5), False),
    ],
    ids=["a token was generated", "a prompt was read", "nothing runs", "the server is paused"],
)
def test_the_stall_clock_starts_again_when(metrics: PoolMetrics, may_run: bool) -> None:
    watch = ProgressWatch(HangLimits(stall_seconds=10))
    watch.is_stalled(PoolMetrics(running=1, generated_tokens_total=5), now=0.0, may_run=True)

    assert not watch.is_stalled(metrics, now=11.0, may_run=may_run)
    assert watch.is_stalled(metrics, now=22.0, may_run=True) == (metrics.running > 0)
