"""Engine metrics, read from vLLM's Prometheus text."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from prometheus_client.parser import text_string_to_metric_families

_GAUGES = {
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
}
_COUNTERS = {
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:prompt_tokens_cached_total": "cached_tokens_total",
    "vllm:generation_tokens_total": "generated_tokens_total",
}
_CACHE_INFO = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True)
class PoolMetrics:
    """What one engine, or all engines of a pool, do now and have done since the start."""

    kv_usage: float = 0.0
    """Share of the KV cache in use, 0 to 1."""
    running: int = 0
    """Requests that generate."""
    waiting: int = 0
    """Requests that wait for KV cache or for an engine."""
    preemptions_total: int = 0
    prompt_tokens_total: int = 0
    """Prompt tokens, those from the prefix cache included."""
    cached_tokens_total: int = 0
    """Prompt tokens served from the prefix cache."""
    generated_tokens_total: int = 0
    kv_capacity_tokens: int = 0
    """Tokens that the KV cache holds."""


def parse_metrics(text: str) -> PoolMetrics:
    """Read one vLLM server's metrics; several data-parallel ranks add up, their KV usage is averaged."""
    wanted = (*_GAUGES, *_COUNTERS, _CACHE_INFO)
    # A full page has some 800 lines and takes 10 ms to parse: only the dozen lines that count go in.
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    totals: dict[str, float] = dict.fromkeys((*_GAUGES.values(), *_COUNTERS.values()), 0.0)
    capacity = 0
    num_engines = 0
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if sample.name == _CACHE_INFO:
                capacity += _capacity_tokens(sample.labels)
                continue
            name = _GAUGES.get(sample.name) or _COUNTERS.get(sample.name)
            if name is not None:
                totals[name] += sample.value
            num_engines += name == "kv_usage"
    return PoolMetrics(
        kv_usage=totals.pop("kv_usage") / max(num_engines, 1),
        kv_capacity_tokens=capacity,
        **{name: int(value) for name, value in totals.items()},
    )


def _capacity_tokens(labels: dict[str, str]) -> int:
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else 0


def combine(parts: Iterable[PoolMetrics]) -> PoolMetrics:
    """Metrics of several engines as those of one: sums, and the KV usage weighted by capacity."""
    parts = list(parts)
    capacity = sum(part.kv_capacity_tokens for part in parts)
    used = sum(part.kv_usage * part.kv_capacity_tokens for part in parts)
    sums = {f.name: sum(getattr(part, f.name) for part in parts) for f in fields(PoolMetrics) if f.type is not float}
    return PoolMetrics(**(sums | {"kv_usage": used / capacity if capacity else 0.0}))


def retired(last: PoolMetrics) -> PoolMetrics:
    """What stays of a server that has ended: its counters, so that sums never fall over a restart."""
    return PoolMetrics(
        preemptions_total=last.preemptions_total,
        prompt_tokens_total=last.prompt_tokens_total,
        cached_tokens_total=last.cached_tokens_total,
        generated_tokens_total=last.generated_tokens_total,
    )
