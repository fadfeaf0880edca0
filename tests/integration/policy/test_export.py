import json
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from seatrial_api.spec.algorithm import LossSpec
from seatrial_trainer.policy import hugging_face
from seatrial_trainer.policy.batch import Minibatch
from seatrial_trainer.policy.torch_backend import TorchBackend
from tests.integration.policy.conftest import MakeModel, make_sequences, make_setup


def names_on_disk(directory: Path) -> set[str]:
    names: set[str] = set()
    for file in directory.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names |= set(opened.keys())
    return names


def trained(path: Path, dtype: str = "float32") -> TorchBackend:
    backend = TorchBackend(make_setup(dtype), path)
    backend.forward_backward(Minibatch(make_sequences(), LossSpec()))
    backend.optim_step(1e-2)
    return backend


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_is_the_trained_model_for_anyone_who_loads_it(model_path: Path, tmp_path: Path, dtype: str) -> None:
    backend = trained(model_path, dtype)
    num_bytes = backend.export(tmp_path / "v1")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "v1")
    ids = [1, 2, 3, 4, 5]
    row = torch.tensor([ids])
    expected = model(row).logits[0, :-1].float().log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]
    assert str(model.dtype) == f"torch.{dtype}"
    assert backend.logprobs([ids])[0][1:] == pytest.approx(expected.tolist(), abs=1e-5 if dtype == "float32" else 0.05)
    assert num_bytes == sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize("config_class", ["Qwen3Config", "Qwen3MoeConfig", "LlamaConfig"])
def test_exported_names_are_those_of_the_model_directory(
    make_model: MakeModel, tmp_path: Path, config_class: str
) -> None:
    path = make_model(config_class)
    backend = TorchBackend(make_setup(), path)
    exported = dict(backend.export_weights())
    assert exported.keys() == names_on_disk(path)
    backend.export(tmp_path / "v0")
    assert names_on_disk(tmp_path / "v0") == names_on_disk(path)


def test_everything_but_the_weights_comes_from_the_initial_model(make_model: MakeModel, tmp_path: Path) -> None:
    source = tmp_path / "source"
    TorchBackend(make_setup(), make_model()).export(source)
    (source / "tokenizer.json").write_text('{"a": 1}')
    (source / "chat_template.jinja").write_text("{{ x }}")
    (source / "pytorch_model.bin").write_bytes(b"old weights")
    backend = trained(source)
    backend.export(tmp_path / "v1")
    assert (tmp_path / "v1" / "tokenizer.json").read_text() == '{"a": 1}'
    assert (tmp_path / "v1" / "chat_template.jinja").read_text() == "{{ x }}"
    assert not (tmp_path / "v1" / "pytorch_model.bin").exists()
    assert json.loads((tmp_path / "v1" / "config.json").read_text())["model_type"] == "qwen3"


def test_an_export_replaces_the_one_before_and_leaves_nothing_aside(model_path: Path, tmp_path: Path) -> None:
    backend = TorchBackend(make_setup(), model_path)
    backend.export(tmp_path / "v")
    (tmp_path / "v" / "stale").touch()
    backend.export(tmp_path / "v")
    assert not (tmp_path / "v" / "stale").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["v"]
    assert (tmp_path / "v" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_exporting_does_not_disturb_training(model_path: Path, tmp_path: Path) -> None:
    one, other = trained(model_path), trained(model_path)
    one.export(tmp_path / "v")
    for backend in (one, other):
        backend.forward_backward(Minibatch(make_sequences(seed=1), LossSpec()))
        backend.optim_step(1e-2)
    assert one.logprobs([[1, 2, 3]]) == other.logprobs([[1, 2, 3]])


def test_weights_are_written_as_they_come_and_let_go_of(model_path: Path, tmp_path: Path) -> None:
    given: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(10):
            alive.append(sum(one() is not None for one in given))
            tensor = torch.full((4,), float(number))
            given.append(weakref.ref(tensor))
            yield f"weight-{number}", tensor

    num_bytes = hugging_face.export(weights(), model_path, tmp_path / "v", "float32", shard_bytes=48)
    assert num_bytes == 10 * 16
    assert max(alive) <= 4, "those of one file, and the one that comes next"
    index = json.loads((tmp_path / "v" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == num_bytes
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{n}-of-00004.safetensors" for n in range(1, 5)]
    stored = {name: file for file in set(index["weight_map"].values()) for name in load_file(tmp_path / "v" / file)}
    assert stored == index["weight_map"]
