"""Every object inside an object, and every model inside a model."""

from collections.abc import Iterator
from typing import Any

from seatrial_api.base import ApiModel


def objects(
    model: ApiModel, former: ApiModel | None = None, path: str = ""
) -> Iterator[tuple[str, ApiModel, ApiModel | None]]:
    """`model` and every object in it: its path, itself, and the object of the same place in `former`.

    Items of lists have no counterpart: the API server does not match them either.
    """
    yield path, model, former
    for name, field in type(model).model_fields.items():
        value, former_value = getattr(model, name), getattr(former, name, None)
        below = f"{path}.{field.alias or name}"
        if isinstance(value, ApiModel):
            yield from objects(value, former_value if isinstance(former_value, ApiModel) else None, below)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ApiModel):
                    yield from objects(item, None, f"{below}[{index}]")


def model_types(model: type[ApiModel]) -> list[type[ApiModel]]:
    """`model` and every model that its fields hold."""
    found: dict[type[ApiModel], None] = {}
    waiting: list[Any] = [model]
    while waiting:
        item = waiting.pop()
        if isinstance(item, type) and issubclass(item, ApiModel):
            if item not in found:
                found[item] = None
                waiting.extend(info.annotation for info in item.model_fields.values())
        else:
            waiting.extend(getattr(item, "__args__", ()))
    return list(found)
