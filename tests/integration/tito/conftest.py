"""One model folder, and the proxy in front of a scripted engine."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from seatrial_rollout.tito.proxy.server import Proxy
from tests.chat_models import FAMILIES, ChatModel, write_model


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    return ChatModel(FAMILIES["qwen3"], write_model(FAMILIES["qwen3"], tmp_path_factory.mktemp("qwen3")))


@pytest_asyncio.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy(keep_alive_seconds=0.05) as proxy:
        yield proxy
