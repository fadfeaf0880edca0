"""One model folder of each family, made once."""

from pathlib import Path

import pytest

from tests.chat_models import FAMILIES, ChatModel, write_model


@pytest.fixture(scope="session")
def chat_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatModel]:
    folder: Path = tmp_path_factory.mktemp("models")
    return {name: ChatModel(family, write_model(family, folder / name)) for name, family in FAMILIES.items()}


@pytest.fixture(params=sorted(FAMILIES))
def model(request: pytest.FixtureRequest, chat_models: dict[str, ChatModel]) -> ChatModel:
    return chat_models[request.param]


@pytest.fixture
def qwen3(chat_models: dict[str, ChatModel]) -> ChatModel:
    return chat_models["qwen3"]


@pytest.fixture
def glm4(chat_models: dict[str, ChatModel]) -> ChatModel:
    return chat_models["glm4"]
