"""Weights under their Hugging Face names, and model directories that engines read."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from seatrial_trainer.storage.atomic import publishing

_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.gguf")


SHARD_BYTES = 2 << 30
"""Weights of one file, and what of a model is in memory twice while it is written."""


def named_weights(module: Any, whole: Callable[[str, Tensor], Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Every weight once, under the name it has in a model directory.

    transformers fuses some weights when it loads them, such as a layer's experts; they are parted again, one layer at
    a time, so that no second copy of the model is made. Of tied weights the first name is given.

    Args:
        module: The model.
        whole: What a weight is once all that belongs to it has come together, by its name in the module.
    """
    from transformers.core_model_loading import revert_weight_conversion  # noqa: PLC0415  heavy

    for _, layer in groupby(_distinct_weights(module), key=lambda item: _layer_of(item[0])):
        weights = {name: whole(name, tensor) if whole else tensor for name, tensor in layer}
        yield from revert_weight_conversion(module, weights).items()


def export(
    weights: Iterable[tuple[str, Tensor]], source: Path, directory: Path, dtype: str, *, shard_bytes: int = SHARD_BYTES
) -> int:
    """Write a model directory: weights, and everything but the weights from `source`.

    The directory appears complete or not at all; one that is already there is replaced. Weights are written as they
    come, so that no more of them than one file's are held.

    Args:
        weights: Weights by their Hugging Face names.
        source: Model directory that the policy started from.
        directory: Directory to write.
        dtype: Number format of the weights, for `config.json`.
        shard_bytes: Weights of one file at most; a larger weight gets its own.

    Returns:
        Bytes of weights.
    """
    with publishing(directory) as partial:
        shutil.copytree(source, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_WEIGHT_FILES))
        config = json.loads((partial / "config.json").read_text())
        config.pop("torch_dtype", None)
        (partial / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2))
        return _write_weights(weights, partial, shard_bytes)


def _write_weights(weights: Iterable[tuple[str, Tensor]], directory: Path, shard_bytes: int) -> int:
    shards: list[list[str]] = []
    num_bytes = 0
    for number, shard in enumerate(_shards(weights, shard_bytes)):
        file = directory / f"{number}.safetensors"
        save_file(shard, file, metadata={"format": "pt"})
        file.chmod(0o644)  # safetensors makes them private, but engines may run as another user
        shards.append(list(shard))
        num_bytes += sum(tensor.nbytes for tensor in shard.values())
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    else:
        file_of = {weight: name for name, shard in zip(names, shards, strict=True) for weight in shard}
        index = {"metadata": {"total_size": num_bytes}, "weight_map": file_of}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    for number, name in enumerate(names):
        (directory / f"{number}.safetensors").rename(directory / name)
    return num_bytes


def _shards(weights: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    """The weights of one file after another; they are let go of when the next file's are asked for."""
    shard: dict[str, Tensor] = {}
    for name, tensor in weights:
        if shard and sum(one.nbytes for one in shard.values()) + tensor.nbytes > shard_bytes:
            yield shard
            shard.clear()
        shard[name] = _with_storage_of_its_own(tensor)
    yield shard


def _with_storage_of_its_own(tensor: Tensor) -> Tensor:
    """Safetensors refuses parts of larger tensors, such as one of a layer's experts."""
    is_whole = tensor.untyped_storage().nbytes() == tensor.nbytes and tensor.is_contiguous()
    return tensor if is_whole else tensor.clone(memory_format=torch.contiguous_format)


def _distinct_weights(module: Any) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor.detach()


def _layer_of(name: str) -> str:
    """`model.layers.7` of `model.layers.7.mlp.down_proj.weight`; the name itself outside of layers."""
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return name if number is None else ".".join(parts[: number + 1])
