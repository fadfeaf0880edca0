"""One engine over a real vLLM: exact, updated under running requests, and replaced when it dies or hangs."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer

from seatrial_api.spec.rollout import EngineSpec
from seatrial_rollout.engine.client import EngineClient
from seatrial_rollout.engine.control import WeightFiles
from seatrial_rollout.engine.engine import Engine
from seatrial_rollout.engine.errors import EngineError, WeightUpdateError
from seatrial_rollout.engine.generation import EngineAddress, Generation, GenerationRequest
from seatrial_rollout.engine.launch import ServerLaunch
from seatrial_rollout.engine.supervision import HangLimits
from seatrial_rollout.tito.call_formats import PARSERS
from seatrial_rollout.tito.parsers import TurnParser
from seatrial_rollout.tito.proxy.demands import Demand
from seatrial_rollout.tito.proxy.grammar import structural_tag
from tests.integration.engine.conftest import load_reference, mixed_logprobs, reference_logprobs
from tests.leftovers import all_processes
from tests.tiny_model import CONTEXT_LENGTH, VOCAB_SIZE

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

TOLERANCE = 1e-4
PROMPT = [7 + i % (VOCAB_SIZE - 10) for i in range(300)]  # more than two cache blocks of 128 tokens
LONG = GenerationRequest(PROMPT, max_tokens=1200, temperature=1.0)
SHORT = GenerationRequest(PROMPT, max_tokens=16, temperature=1.0)
versions = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_a: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """An engine that is supervised, shared by the module; tests load the weights that they want."""
    launch = ServerLaunch(
        engine_id="engine-under-test",
        model_path=model_a,
        dtype="float32",
        context_length=CONTEXT_LENGTH,
        spec=EngineSpec(max_num_seqs=64, kv_cache_gib=0.25),
        work_dir=tmp_path_factory.mktemp("logs"),
    )
    limits = HangLimits(check_interval_seconds=0.5, health_timeout_seconds=30.0, stall_seconds=5.0)
    engine = Engine(launch, token="secret", weights=WeightFiles(0, model_a), limits=limits)  # noqa: S106  of this test
    await engine.start("127.0.0.1")
    watchdog = asyncio.get_running_loop().create_task(engine.run())
    yield engine
    watchdog.cancel()
    await asyncio.wait([watchdog])
    await engine.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    """A client of the engine."""
    async with EngineClient([engine.address], timeout_seconds=280) as client:
        yield client


async def load(engine: Engine, model: Path, *, clear_kv_cache: bool = False) -> int:
    """Load a model's weights under the next version."""
    version = next(versions)
    await engine.load_files(model, version, clear_kv_cache=clear_kv_cache, timeout_seconds=60)
    return version


async def tokens_generated(engine: Engine, more_than: int) -> None:
    """Wait until the engine has generated more tokens than that in its life."""
    while (await engine.metrics()).generated_tokens_total <= more_than:
        pass


def assert_logprobs(generation: Generation, expected: torch.Tensor, *, start: int = 0) -> None:
    """The logprobs from `start` on are the expected ones."""
    given = torch.tensor(generation.logprobs[start : start + len(expected)])
    assert (given - expected).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_are_those_of_the_distribution_that_was_sampled(
    engine: Engine, client: EngineClient, model_a: Path, temperature: float
) -> None:
    version = await load(engine, model_a)

    generation = await client.generate(GenerationRequest(PROMPT, 48, temperature))

    assert generation.finish_reason == "length"
    assert generation.weight_versions == [version] * 48
    expected = reference_logprobs(load_reference(model_a), PROMPT, generation.token_ids, temperature=temperature)
    assert_logprobs(generation, expected)


async def test_a_stop_token_ends_the_generation_and_is_part_of_it(engine: Engine, client: EngineClient) -> None:
    free = await client.generate(GenerationRequest(PROMPT, 8, 0.0))
    stop = free.token_ids[4]

    generation = await client.generate(GenerationRequest(PROMPT, 8, 0.0, stop_token_ids=[stop]))

    assert generation.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert generation.finish_reason == "stop"


async def test_a_grammar_bounds_what_is_sampled_and_logprobs_are_those_within_it(
    client: EngineClient, model_a: Path
) -> None:
    demand = Demand("tool_choice", ("bash",), is_single=True)
    parameters = {"type": "object", "properties": {"loud": {"type": "boolean"}}, "required": ["loud"]}
    tool = {"type": "function", "function": {"name": "bash", "parameters": parameters}}
    tag = structural_tag(demand, [tool], TurnParser(PARSERS["hermes"], has_reasoning=False, call_format="hermes"))
    start = '<tool_call>\n{"name": "bash", "arguments": '
    request = GenerationRequest(PROMPT, len(start), 1.0, structural_tag=tag)

    generation = await client.generate(request)

    tokenizer = Tokenizer.from_file(str(model_a / "tokenizer.json"))
    assert tokenizer.decode(generation.token_ids, skip_special_tokens=False) == start
    assert max(map(abs, generation.logprobs)) < TOLERANCE  # there was no other choice


async def test_an_update_in_flight_keeps_the_request_and_its_old_keys_and_values(
    engine: Engine, client: EngineClient, model_a: Path, model_b: Path
) -> None:
    old = await load(engine, model_a)
    new, generation = await update_in_flight(engine, client, model_b, clear_kv_cache=False)

    boundary = generation.weight_versions.index(new)
    assert generation.weight_versions == [old] * boundary + [new] * (len(generation.token_ids) - boundary)
    model_old, model_new = load_reference(model_a), load_reference(model_b)
    assert_logprobs(generation, reference_logprobs(model_old, PROMPT, generation.token_ids[:boundary]))
    expected = mixed_logprobs(model_old, model_new, PROMPT, generation.token_ids, boundary)
    assert_logprobs(generation, expected, start=boundary)
    assert 0 < generation.waited_seconds < 5  # the pause


async def test_an_update_that_clears_the_cache_recomputes_running_requests(
    engine: Engine, client: EngineClient, model_a: Path, model_b: Path
) -> None:
    await load(engine, model_a)
    new, generation = await update_in_flight(engine, client, model_b, clear_kv_cache=True)

    boundary = generation.weight_versions.index(new)
    expected = reference_logprobs(load_reference(model_b), PROMPT, generation.token_ids)[boundary:]
    assert_logprobs(generation, expected, start=boundary)


async def update_in_flight(
    engine: Engine, client: EngineClient, model: Path, *, clear_kv_cache: bool
) -> tuple[int, Generation]:
    """Update while a request runs that is long enough for both sides of the boundary."""
    before = (await engine.metrics()).generated_tokens_total
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(client.generate(LONG))
        await tokens_generated(engine, before + 20)
        version = await load(engine, model, clear_kv_cache=clear_kv_cache)
        assert not task.done()
    return version, task.result()


async def test_no_request_reads_keys_and_values_of_earlier_weights(
    engine: Engine, client: EngineClient, model_a: Path, model_b: Path
) -> None:
    await load(engine, model_a)
    await client.generate(SHORT)
    assert (await client.generate(SHORT)).num_cached_tokens > 0

    before = (await engine.metrics()).generated_tokens_total
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.generate(LONG))  # holds blocks of the same prompt over the update
        await tokens_generated(engine, before + 5)
        await load(engine, model_b)
        first = await client.generate(SHORT)
        second = await client.generate(SHORT)
        assert not running.done()

    reference = load_reference(model_b)
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens > 0
    for generation in (first, second):
        assert_logprobs(generation, reference_logprobs(reference, PROMPT, generation.token_ids))


async def test_an_engine_that_is_to_serve_another_version_admits_nothing(engine: Engine, model_a: Path) -> None:
    version = await load(engine, model_a)
    await engine.expect(version + 1000)
    async with EngineClient([engine.address], timeout_seconds=0.5) as client:
        with pytest.raises(EngineError):
            await client.generate(SHORT)

    await engine.expect(version)
    async with EngineClient([engine.address], timeout_seconds=30) as client:
        assert (await client.generate(SHORT)).weight_versions == [version] * 16


async def test_an_empty_folder_of_weights_is_refused_and_the_engine_serves_on(
    engine: Engine, client: EngineClient, tmp_path: Path
) -> None:
    before = (await engine.status()).version
    with pytest.raises(WeightUpdateError, match="no safetensors files"):
        await engine.load_files(tmp_path, 10_000, clear_kv_cache=False, timeout_seconds=10)

    assert (await client.generate(SHORT)).weight_versions == [before] * 16


async def test_loading_what_was_never_sent_fails_and_leaves_the_model_whole(
    engine: Engine, client: EngineClient
) -> None:
    before, restarts = (await engine.status()).version, engine.num_restarts
    with pytest.raises(WeightUpdateError, match="no weights were staged"):
        await engine.load_staged({}, 10_000, clear_kv_cache=False, timeout_seconds=30)

    assert (await client.generate(SHORT)).weight_versions == [before] * 16
    assert engine.num_restarts == restarts


async def test_a_wrong_token_is_refused(engine: Engine) -> None:
    address = EngineAddress("engine-under-test", engine.address.url, "wrong")
    async with EngineClient([address], timeout_seconds=10) as client:
        with pytest.raises(EngineError, match="HTTP 401"):
            await client.generate(SHORT)


async def test_openai_clients_are_served_and_seeded_prompts_do_not_kill_the_server(engine: Engine) -> None:
    headers = {"Authorization": f"Bearer {engine.address.token}"}
    servers = engine.num_restarts
    async with aiohttp.ClientSession(engine.address.url, headers=headers) as session:

        async def complete(index: int) -> int:
            body = {"model": "policy", "prompt": [index + 5, *[9] * 1900], "max_tokens": 2, "seed": index}
            async with session.post("/v1/completions", json=body) as response:
                return response.status

        async with asyncio.TaskGroup() as tasks:  # together more than one step's tokens: vLLM would chunk a prefill
            completions = [tasks.create_task(complete(index)) for index in range(6)]
        chat = {"model": "policy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        async with session.post("/v1/chat/completions", json=chat) as response:
            assert (await response.json())["usage"]["completion_tokens"] == 4

    assert [task.result() for task in completions] == [200] * 6
    assert engine.num_restarts == servers


async def test_a_request_outlives_the_server_that_is_killed_under_it(
    engine: Engine, client: EngineClient, model_a: Path, model_b: Path
) -> None:
    await load(engine, model_a)
    version = await load(engine, model_b)
    before = await engine.metrics()
    (server,) = children(engine.server.process_group)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(client.generate(LONG))
        await tokens_generated(engine, before.generated_tokens_total + 10)
        group = {pid for pid in all_processes() if _group_of(pid) == engine.server.process_group}
        os.kill(server, signal.SIGKILL)

    generation = task.result()
    assert generation.weight_versions == [version] * LONG.max_tokens
    assert_logprobs(generation, reference_logprobs(load_reference(model_b), PROMPT, generation.token_ids))
    assert generation.waited_seconds > 1  # the restart is not the trial's
    assert (await engine.metrics()).generated_tokens_total >= before.generated_tokens_total + LONG.max_tokens
    assert not group & set(all_processes())  # nothing of the old server is left


async def test_a_request_outlives_the_server_that_stops_making_progress(
    engine: Engine, client: EngineClient, model_b: Path
) -> None:
    version = await load(engine, model_b)
    before = (await engine.metrics()).generated_tokens_total
    (server,) = children(engine.server.process_group)
    restarts = engine.num_restarts
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(client.generate(LONG))
        await tokens_generated(engine, before + 10)
        for process in children(server):  # vLLM's engine process: its HTTP server goes on answering that all is well
            os.kill(process, signal.SIGSTOP)

    assert task.result().weight_versions == [version] * LONG.max_tokens
    assert engine.num_restarts == restarts + 1


async def test_weights_that_cannot_be_read_cost_the_server_and_not_the_engine(
    engine: Engine, client: EngineClient, model_b: Path, tmp_path: Path
) -> None:
    version = await load(engine, model_b)
    (tmp_path / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(WeightUpdateError):
        await engine.load_files(tmp_path, 10_000, clear_kv_cache=False, timeout_seconds=60)

    assert (await client.generate(SHORT)).weight_versions == [version] * 16


def children(parent: int) -> list[int]:
    """Processes whose parent it is."""
    return [pid for pid in all_processes() if _stat(pid)[1:2] == [str(parent)]]


def _group_of(pid: int) -> int:
    return int((_stat(pid) or ["", "", "-1"])[2])


def _stat(pid: int) -> list[str]:
    """State, parent, group and so on of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
