"""Two engines under Ray, and weights that reach them by files and by broadcast."""

import asyncio
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import ray
import torch
from ray.exceptions import RayActorError
from safetensors.torch import load_file

from seatrial_api.spec.model import ContextLength, ModelSpec, Source
from seatrial_api.spec.rollout import EngineSpec
from seatrial_rollout.engine.actor import RemoteEngine
from seatrial_rollout.engine.client import EngineClient
from seatrial_rollout.engine.control import WeightFiles
from seatrial_rollout.engine.generation import EngineAddress, Generation, GenerationRequest
from seatrial_rollout.engine.pool import EnginePool, PoolOptions
from seatrial_trainer.weight_sync.files import FilesSync
from seatrial_trainer.weight_sync.gloo import GlooSync
from seatrial_trainer.weight_sync.remote_sender import RemoteSender
from seatrial_trainer.weight_sync.sender import WeightSender
from tests.integration.engine.conftest import load_reference, reference_logprobs
from tests.leftovers import descendants, eventually, is_running
from tests.tiny_model import CONTEXT_LENGTH

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

PROMPT = list(range(10, 250))
MODEL = ModelSpec(source=Source(path="model"), dtype="float32", context_length=ContextLength(train=CONTEXT_LENGTH))
SHORT = GenerationRequest(PROMPT, max_tokens=16, temperature=1.0)


class Policy:
    """A policy rank as far as weight synchronisation sees it, which can strike at processes while it exports."""

    def __init__(self) -> None:
        self._weights: dict[str, torch.Tensor] = {}
        self._victims: set[int] = set()
        self._signal = signal.SIGKILL
        self._sender = WeightSender(self._export, bucket_bytes=256 * 1024)  # several collectives a transfer

    def load(self, path: Path, victims: set[int] = frozenset(), signal_number: int = signal.SIGKILL) -> None:
        """Take over weights; the next export sends a signal to some processes half-way."""
        self._weights = load_file(path / "model.safetensors")
        self._victims = victims
        self._signal = signal.Signals(signal_number)

    def _export(self) -> Iterator[tuple[str, torch.Tensor]]:
        for index, (name, tensor) in enumerate(self._weights.items()):
            if index == len(self._weights) // 2:
                self._strike()
            yield name, tensor

    def _strike(self) -> None:
        victims, self._victims = self._victims, set()
        for victim in victims:
            os.kill(victim, self._signal)
        while self._signal is signal.SIGKILL and any(map(is_running, victims)):
            pass

    def weight_sender(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the sender."""
        return getattr(self._sender, method)(*args, **kwargs)

    def node_address(self) -> str:
        """Address of the node."""
        return str(ray.util.get_node_ip_address())


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray of this module's own."""
    folder = tempfile.mkdtemp(prefix="ray-")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(cluster: None, model_a: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EnginePool]:
    """Two supervised engines, shared by the module."""
    spec = EngineSpec(replicas=2, max_num_seqs=16, kv_cache_gib=0.125)
    pool = EnginePool(spec, MODEL, model_a, PoolOptions(work_dir=tmp_path_factory.mktemp("logs")))
    await pool.start()
    supervision = asyncio.get_running_loop().create_task(pool.run())
    yield pool
    supervision.cancel()
    await asyncio.wait([supervision])
    await pool.stop()


@pytest.fixture(scope="module")
def policy(cluster: None) -> Any:
    """The actor that holds the policy's weights."""
    return ray.remote(Policy).options(num_cpus=0).remote()


def gloo_sync(pool: EnginePool, policy: Any) -> GlooSync:
    """Broadcasts whose arrival is verified."""
    return GlooSync(pool, RemoteSender([policy]), timeout_seconds=60, verify_checksums=True)


async def checksums(pool: EnginePool) -> list[dict[str, str]]:
    """Digests of all weights of each engine."""
    return [await engine.checksums(30) for engine in pool.engines]


async def generate_on(pool: EnginePool, index: int) -> Generation:
    """Generate on one engine alone."""
    async with EngineClient([pool.addresses()[index]], timeout_seconds=60) as client:
        return await client.generate(SHORT)


async def test_a_broadcast_brings_the_same_weights_as_files(
    pool: EnginePool, policy: Any, model_a: Path, model_b: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def export(folder: Path) -> None:
        shutil.copy(model_b / "model.safetensors", folder)

    first = await checksums(pool)
    files = FilesSync(pool, export, tmp_path_factory.mktemp("weights"))
    by_files = await files.publish(1)
    after_files = await checksums(pool)
    await policy.load.remote(model_a)
    await gloo_sync(pool, policy).publish(2)
    back = await checksums(pool)
    await policy.load.remote(model_b)
    sync = gloo_sync(pool, policy)
    by_gloo = await sync.publish(3)
    await sync.close()
    after_gloo = await checksums(pool)

    assert first[0] == first[1] == back[0] == back[1] != after_files[0]
    assert after_files[0] == after_files[1] == after_gloo[0] == after_gloo[1]
    assert by_files.bytes > by_gloo.bytes > 3_000_000  # a file has a header
    assert by_files.num_engines == by_gloo.num_engines == 2
    generation = await generate_on(pool, 0)
    assert generation.weight_versions == [3] * 16
    expected = reference_logprobs(load_reference(model_b), PROMPT, generation.token_ids)
    assert (torch.tensor(generation.logprobs) - expected).abs().max().item() < 1e-4


async def test_requests_run_on_while_weights_arrive(pool: EnginePool, policy: Any, model_a: Path) -> None:
    version = pool.version
    sync = gloo_sync(pool, policy)
    async with EngineClient(pool.addresses(), timeout_seconds=60) as client, asyncio.TaskGroup() as tasks:
        before = (await pool.metrics()).generated_tokens_total
        task = tasks.create_task(client.generate(GenerationRequest(PROMPT, 1500, 1.0)))
        while (await pool.metrics()).generated_tokens_total < before + 20:
            pass
        await policy.load.remote(model_a)
        report = await sync.publish(version + 1)
        assert not task.done()
    await sync.close()

    assert sorted(set(task.result().weight_versions)) == [version, version + 1]
    assert report.paused_seconds < report.seconds


async def test_an_engine_lost_in_a_broadcast_holds_nobody_up_and_never_serves_as_current(
    pool: EnginePool, policy: Any, model_b: Path
) -> None:
    version = pool.version + 1
    sync = gloo_sync(pool, policy)
    survivor, victim = pool.engines
    address = victim.address
    actor = await victim.actor.__ray_call__.remote(lambda _: os.getpid())
    await policy.load.remote(model_b, {actor, *descendants(actor)})

    report = await sync.publish(version)

    assert report.num_engines == 1
    await eventually(lambda: pool.engines == [survivor], what="the pool to notice the loss")
    assert (await generate_on(pool, 0)).weight_versions == [version] * 16

    await eventually(lambda: len(pool.engines) == 2, what="another engine", seconds=200)
    assert pool.engines[1].address == address
    async with aiohttp.ClientSession() as session, session.get(f"{address.url}/health") as response:
        assert response.status == 503
        assert f"not {version}" in (await response.json())["reason"]

    assert await sync.repair() == 1
    assert (await generate_on(pool, 1)).weight_versions == [version] * 16
    digests = await checksums(pool)
    assert digests[0] == digests[1]
    await sync.close()


async def test_an_engine_that_cannot_be_told_of_a_version_is_ended(cluster: None, tmp_path: Path) -> None:
    class Unheard(RemoteEngine):
        async def expect(self, version: int, files: WeightFiles | None = None) -> None:
            raise TimeoutError(f"version {version} of {files}")

    class Silent:
        def wait(self) -> None:
            threading.Event().wait()

    actor = ray.remote(Silent).options(num_cpus=0).remote()
    waiting = actor.wait.remote()
    pool = EnginePool(EngineSpec(replicas=1), MODEL, tmp_path, PoolOptions(work_dir=tmp_path))
    pool._engines["engine-0"] = Unheard(actor, EngineAddress("engine-0", "http://10.0.0.1:1", "token"))

    await pool.publish(1)

    with pytest.raises(RayActorError):
        await waiting


async def test_an_engine_that_is_cut_off_in_a_broadcast_costs_the_others_nothing_and_serves_nothing(
    pool: EnginePool, policy: Any, model_a: Path
) -> None:
    version = pool.version + 1
    sync = GlooSync(pool, RemoteSender([policy]), timeout_seconds=30)  # a third of it for the engine that says nothing
    survivor, victim = pool.engines
    servers = [(await engine.status()).server_id for engine in pool.engines]
    actor = await victim.actor.__ray_call__.remote(lambda _: os.getpid())
    await policy.load.remote(model_a, descendants(actor), signal.SIGSTOP)

    report = await sync.publish(version)

    assert report.num_engines == 1
    assert (await survivor.status()).server_id == servers[0]
    assert (await generate_on(pool, 0)).weight_versions == [version] * 16
    async with aiohttp.ClientSession() as session, session.get(f"{victim.address.url}/health") as response:
        assert response.status == 503
    assert (await victim.status()).server_id != servers[1], "the server that hangs is given up"
    await sync.close()
