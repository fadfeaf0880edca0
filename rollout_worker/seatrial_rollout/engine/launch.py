"""How a vLLM server is started: its command line and environment, as pure functions."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seatrial_api.spec.rollout import EngineSpec

SERVED_MODEL_NAME = "policy"
"""The name that OpenAI clients give as `model`."""

FORK_FLAG = "--fork-engine"
"""First argument of `vllm_main` if the engine process is to be forked; all others are vLLM's."""

_GIB = 1024**3
_DEFAULT_CPU_KV_CACHE_GIB = 1.0
_MIN_CPU_BATCHED_TOKENS = 8192
_UNIPROC_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Runs the worker inside the engine process: one interpreter and one hop less than vLLM's default on CPUs."""


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """Everything that decides how one vLLM server process starts; picklable."""

    engine_id: str
    model_path: Path
    """Folder in Hugging Face layout."""
    dtype: str
    """`float32` or `bfloat16`."""
    context_length: int
    """Tokens of prompt and output together."""
    spec: EngineSpec
    work_dir: Path
    """Where the server keeps its log."""
    device: Literal["cpu", "cuda"] = "cpu"
    weight_transfer: Literal["gloo", "nccl"] = "gloo"
    """Collective that may bring new weights; files work beside either."""
    tells_experts: bool = False
    """Whether answers say which experts each token went to."""

    @property
    def log_path(self) -> Path:
        """Standard output and error of the server, appended over restarts."""
        return self.work_dir / f"{self.engine_id}.log"


def command(launch: ServerLaunch, socket_path: Path) -> list[str]:
    """The command line of a server that listens on a Unix socket."""
    spec = launch.spec
    runs_in_process = launch.device == "cpu" and spec.tensor_parallel == 1
    return [
        *(sys.executable, "-m", "seatrial_rollout.engine.vllm_main", *([FORK_FLAG] if runs_in_process else [])),
        *("--uds", str(socket_path)),
        *("--model", str(launch.model_path), "--served-model-name", SERVED_MODEL_NAME),
        *("--dtype", launch.dtype, "--max-model-len", str(launch.context_length)),
        *("--max-num-seqs", str(spec.max_num_seqs), "--tensor-parallel-size", str(spec.tensor_parallel)),
        "--enable-scale-out",  # the token-in, token-out route
        "--enable-prompt-tokens-details",  # cached prompt tokens in the answer
        *("--logprobs-mode", "processed_logprobs"),  # of the distribution that is sampled from, temperature included
        # A model's generation_config may truncate by default; rollouts sample as the run says, and only so.
        *("--override-generation-config", '{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}'),
        *("--weight-transfer-config", f'{{"backend": "{launch.weight_transfer}"}}'),
        *("--worker-extension-cls", "seatrial_rollout.engine.vllm_extension.WorkerExtension"),
        "--disable-uvicorn-access-log",
        *(_cpu_arguments(launch) if launch.device == "cpu" else _gpu_arguments(spec)),
        *(["--distributed-executor-backend", _UNIPROC_EXECUTOR] if runs_in_process else []),
        *(["--enable-return-routed-experts"] if launch.tells_experts else []),
        *spec.args,
    ]


def environment(launch: ServerLaunch, inherited: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The environment of the server; what the spec says wins.

    Args:
        launch: The server.
        inherited: Environment of the process that starts it.
        scratch: Folder that goes when the server does.
    """
    ours = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # the weight-update routes
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_RPC_BASE_PATH": str(scratch),  # or its sockets stay in /tmp for good
    }
    if launch.device == "cpu":
        # Two OpenMP threads on cores that others use too are an order of magnitude slower than one.
        ours |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        # vLLM compiles one small function all the same: that takes a C++ compiler, and longer than it ever saves.
        ours["TORCH_COMPILE_DISABLE"] = "1"
    return {**inherited, **ours, **launch.spec.env}


def _cpu_arguments(launch: ServerLaunch) -> list[str]:
    gib = launch.spec.kv_cache_gib or _DEFAULT_CPU_KV_CACHE_GIB
    return [
        "--enforce-eager",  # compilation costs half a minute at every start
        *("--kv-cache-memory-bytes", str(int(gib * _GIB))),
        # A seeded request in a chunked prefill kills vLLM's CPU engine, so that no prefill is chunked.
        "--no-enable-chunked-prefill",
        *("--max-num-batched-tokens", str(max(_MIN_CPU_BATCHED_TOKENS, launch.context_length))),
    ]


def _gpu_arguments(spec: EngineSpec) -> list[str]:
    return ["--gpu-memory-utilization", str(spec.gpu_memory_utilization)]
