"""A pool on its own as Kubernetes runs it: the serving process, a Ray node per pod, a real vLLM on each."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
import torch
from ray.cluster_utils import Cluster

from seatrial_api.clock import SYSTEM_CLOCK, Deadline
from seatrial_api.serving import TOKEN_VARIABLE, PoolReport, ServingRequest
from seatrial_api.spec.model import ContextLength, ModelSpec, Source
from seatrial_api.spec.rollout import EngineSpec
from seatrial_rollout.engine.client import EngineClient
from seatrial_rollout.engine.generation import EngineAddress, GenerationRequest
from tests.integration.engine.conftest import load_reference, reference_logprobs
from tests.tiny_model import CONTEXT_LENGTH

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

TOKEN = "pool-token"  # noqa: S105  of a pool that lives for one test
PROMPT = list(range(10, 250))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Ray with a head that runs no engine."""
    folder = tempfile.mkdtemp(prefix="ray-")
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": folder, "object_store_memory": 2**27}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Served:
    """A serving process that runs."""

    process: asyncio.subprocess.Process
    url: str

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.request("GET", self.url + path, headers=headers) as answer:
            return answer.status, await answer.read()

    async def report(self) -> PoolReport:
        """What it says of its engines."""
        _, body = await self.get("/v1/pool")
        return PoolReport.model_validate_json(body)

    async def wait_ready(self, num_engines: int) -> list[str]:
        """Names of the engines, once so many are ready and there is no other."""
        deadline = Deadline.after(240)
        while True:
            report = await self.report()
            is_measured = all(engine.kv_tokens for engine in report.engines)  # a moment after it is ready
            if [engine.state for engine in report.engines] == ["Ready"] * num_engines and is_measured:
                return [engine.name for engine in report.engines]
            deadline.check(f"{num_engines} engines; {report}")
            await SYSTEM_CLOCK.sleep(0.2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(cluster: Cluster, model_a: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """The serving process, with no engine yet."""
    folder = tmp_path_factory.mktemp("pool")
    request = ServingRequest(
        pool="office",
        model=ModelSpec(
            source=Source(path=model_a.name), dtype="float32", context_length=ContextLength(train=CONTEXT_LENGTH)
        ),
        engines=EngineSpec(replicas=7, max_num_seqs=16, kv_cache_gib=0.125),
        base_dir=model_a.parent,
    )
    (folder / "pool.json").write_text(request.model_dump_json(by_alias=True))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "seatrial_rollout.serving", "--request", str(folder / "pool.json")),
        *("--host", "127.0.0.1", "--port", "0", "--logs", str(folder / "logs")),
        env={**os.environ, TOKEN_VARIABLE: TOKEN, "RAY_ADDRESS": cluster.address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        while b"serving" not in (line := await process.stdout.readline()):
            assert line, "the process ended before it served"
        drain = asyncio.get_running_loop().create_task(process.stdout.read())
        yield Served(process, f"http://127.0.0.1:{int(line.split(b'port=')[1].split()[0])}")
        drain.cancel()
        await asyncio.wait([drain])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_engines_follow_the_pods_and_clients_find_them(cluster: Cluster, served: Served, model_a: Path) -> None:
    assert (await served.get("/healthz"))[0] == 503
    first = cluster.add_node(num_cpus=1, resources={"seatrial_rollout": 1}, object_store_memory=2**27)
    names = await served.wait_ready(1)
    assert (await served.get("/healthz"))[0] == 200
    assert (await served.report()).engines[0].kv_tokens > CONTEXT_LENGTH

    await generates_token_exact(served, model_a)
    await speaks_openai(served)

    cluster.add_node(num_cpus=1, resources={"seatrial_rollout": 1}, object_store_memory=2**27)
    both = await served.wait_ready(2)
    assert set(names) < set(both)
    cluster.remove_node(first)
    assert await served.wait_ready(1) == [name for name in both if name not in names]
    await generates_token_exact(served, model_a)

    served.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        assert await served.process.wait() == 0


async def generates_token_exact(served: Served, model: Path) -> None:
    """Tokens go in and come out with the logprobs that the model has."""
    async with EngineClient([EngineAddress("pool", served.url, TOKEN)], timeout_seconds=60) as client:
        generation = await client.generate(GenerationRequest(PROMPT, max_tokens=16, temperature=1.0))
    expected = reference_logprobs(load_reference(model), PROMPT, generation.token_ids)
    assert (torch.tensor(generation.logprobs) - expected).abs().max().item() < 1e-4
    assert generation.weight_versions == [0] * 16


async def speaks_openai(served: Served) -> None:
    """OpenAI's own client works, with and without a stream."""
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=TOKEN, max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["policy"]
        question: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        answer = await client.chat.completions.create(**question)
        assert answer.usage.completion_tokens == 4
        stream = await client.chat.completions.create(**question, stream=True)
        assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(**{**question, "max_tokens": 10 * CONTEXT_LENGTH})
    _, page = await served.get("/metrics")
    assert b'seatrial_pool_requests_total{code="400",route="chat_completions"} 1.0' in page
