"""How a vLLM server is started."""

import pickle
from pathlib import Path

import pytest

from seatrial_api.errors import InvalidInputError
from seatrial_api.spec.model import ContextLength, ModelSpec, Source
from seatrial_api.spec.rollout import EngineSpec
from seatrial_rollout.engine.errors import EngineStartError
from seatrial_rollout.engine.launch import FORK_FLAG, ServerLaunch, command, environment
from seatrial_rollout.engine.pool import EnginePool, PoolOptions
from seatrial_rollout.engine.server import log_tail


def launch(spec: EngineSpec = EngineSpec(), **changes: object) -> ServerLaunch:  # noqa: B008  frozen
    facts = {"model_path": Path("/model"), "dtype": "float32", "context_length": 20_000, "work_dir": Path("/logs")}
    return ServerLaunch(engine_id="e", spec=spec, **(facts | changes))  # type: ignore[arg-type]  # a test's shorthand


def value_of(flag: str, arguments: list[str]) -> str:
    """What follows a flag the last time that it is given, which is what counts."""
    last = len(arguments) - 1 - arguments[::-1].index(flag)
    return arguments[last + 1]


def test_on_a_cpu_no_prefill_is_chunked() -> None:
    arguments = command(launch(), Path("/socket"))

    assert "--no-enable-chunked-prefill" in arguments
    assert int(value_of("--max-num-batched-tokens", arguments)) >= 20_000


def test_on_a_cpu_the_engine_process_is_forked_only_if_the_worker_is_inside() -> None:
    assert FORK_FLAG in command(launch(), Path("/socket"))
    assert FORK_FLAG not in command(launch(EngineSpec(tensor_parallel=2)), Path("/socket"))


def test_on_a_gpu_vllm_keeps_its_own_ways() -> None:
    arguments = command(launch(EngineSpec(gpu_memory_utilization=0.6), device="cuda"), Path("/socket"))

    assert value_of("--gpu-memory-utilization", arguments) == "0.6"
    assert not {FORK_FLAG, "--enforce-eager", "--kv-cache-memory-bytes"} & set(arguments)


def test_experts_are_told_only_where_they_are_replayed() -> None:
    told = command(launch(device="cuda", tells_experts=True), Path("/socket"))

    assert "--enable-return-routed-experts" in told
    assert "--enable-return-routed-experts" not in command(launch(device="cuda"), Path("/socket"))


def test_engines_on_cpus_refuse_to_tell_experts_by_the_field() -> None:
    model = ModelSpec(source=Source(path="/model"), context_length=ContextLength(train=128))
    options = PoolOptions(work_dir=Path("/logs"), device="cpu", tells_experts=True)
    with pytest.raises(InvalidInputError, match=r"trainer\.routerReplay: .*only on GPUs"):
        EnginePool(EngineSpec(), model, Path("/model"), options)


def test_what_the_spec_says_wins() -> None:
    spec = EngineSpec(args=["--logprobs-mode", "raw_logprobs"], env={"OMP_NUM_THREADS": "4"})

    assert value_of("--logprobs-mode", command(launch(spec), Path("/socket"))) == "raw_logprobs"
    assert environment(launch(spec), {"OMP_NUM_THREADS": "9"}, Path("scratch"))["OMP_NUM_THREADS"] == "4"


def test_the_server_listens_on_a_socket_and_not_on_a_port() -> None:
    arguments = command(launch(), Path("/private/socket"))

    assert value_of("--uds", arguments) == "/private/socket"
    assert "--port" not in arguments


def test_a_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(10_000)))

    assert log_tail(log, lines=2) == "line 9998\nline 9999"
    assert log_tail(tmp_path / "none") == "(no log)"


def test_an_error_carries_the_log_over_to_another_process() -> None:
    error = EngineStartError(engine_id="e", what="vLLM ended", log_tail="no such model")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  ours

    assert (str(copy), copy.log_tail) == (str(error), "no such model")


@pytest.mark.parametrize("gib", [None, 0.5])
def test_the_kv_cache_of_a_cpu_has_a_fixed_size(gib: float | None) -> None:
    arguments = command(launch(EngineSpec(kv_cache_gib=gib)), Path("/socket"))

    assert int(value_of("--kv-cache-memory-bytes", arguments)) == int((gib or 1.0) * 1024**3)
