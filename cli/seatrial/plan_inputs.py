"""What a plan can learn from files on this machine: numbers of tasks, and the size of a token in the KV cache."""

import json
from pathlib import Path
from typing import Any

from seatrial_api.ceilings import kv_bytes_per_token
from seatrial_api.demand import TaskCounts
from seatrial_api.errors import InvalidInputError
from seatrial_api.rlrun import RLRunSpec
from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.model import Source

CONFIG_FILE = "config.json"

_GIB = 2**30


def count_tasks(spec: RLRunSpec, base_dir: Path) -> TaskCounts:
    """Tasks by set: those in a folder here, else as many as the set's limit."""
    data = spec.data
    regression = [_count(named.tasks, base_dir) for named in data.regression]
    return TaskCounts(
        train=_count(data.train, base_dir),
        validation=_count(data.validation, base_dir),
        held_out=_count(data.held_out, base_dir),
        regression=None if None in regression else sum(count for count in regression if count is not None),
    )


def _count(tasks: TaskSet | None, base_dir: Path) -> int | None:
    if tasks is None:
        return 0
    if tasks.source.path is None or tasks.format != "Directories":
        return tasks.limit
    found = sum(1 for _ in (base_dir / tasks.source.path).rglob("task.toml"))
    return min(found, tasks.limit or found) or tasks.limit


def read_config(source: Source, base_dir: Path, given: Path | None = None) -> dict[str, Any] | None:
    """The model's `config.json`: the given one, else that of a folder here or of the hub's local cache.

    Args:
        source: Where the run takes the model from.
        base_dir: Folder that relative paths start at.
        given: A config.json, or a folder that has one.

    Returns:
        None where there is none, or none that can be read.

    Raises:
        InvalidInputError: a given one cannot be read.
    """
    file = given / CONFIG_FILE if given is not None and given.is_dir() else given or _config_file(source, base_dir)
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file is not None else None
    except (OSError, ValueError) as exc:
        if given is None:
            return None
        problem = exc.strerror if isinstance(exc, OSError) else f"is not JSON: {exc}"
        raise InvalidInputError(f"--model-config {file}: {problem}") from exc
    if given is not None and not isinstance(config, dict):
        raise InvalidInputError(f"--model-config {file}: must be an object, as the model's {CONFIG_FILE} is")
    return config if isinstance(config, dict) else None


def _config_file(source: Source, base_dir: Path) -> Path | None:
    if source.path is not None:
        return base_dir / source.path / CONFIG_FILE
    if source.hf is None:
        return None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415  slow to import, seldom needed

    cached = try_to_load_from_cache(source.hf.repo, CONFIG_FILE, revision=source.hf.revision)
    return Path(cached) if isinstance(cached, str) else None


def kv_capacity(spec: RLRunSpec, config: dict[str, Any] | None) -> int | None:
    """Tokens that the KV caches of all engines hold, where their size is set and the model's config is known."""
    engines = spec.rollout.engines
    if engines.kv_cache_gib is None or config is None:
        return None
    try:
        heads = config["num_attention_heads"]
        per_token = kv_bytes_per_token(
            num_layers=config["num_hidden_layers"],
            num_kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            bytes_per_value=4 if spec.model.dtype == "float32" else 2,
        )
        return int(engines.replicas * engines.kv_cache_gib * _GIB / per_token)
    except (KeyError, TypeError, ZeroDivisionError):
        return None
