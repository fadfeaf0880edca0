"""Kubernetes' quantities: `500m`, `2Gi`, `1e3`."""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import Field

_PATTERN = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?"

Quantity = Annotated[str, Field(pattern=f"^{_PATTERN.replace('?:', '')}$", max_length=32)]
"""An amount that is not negative, as Kubernetes writes it."""

_BINARY = {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL = {
    letter: Decimal(1000) ** power for power, letter in zip((-3, -2, -1, *range(1, 7)), "numkMGTPE", strict=True)
}
_FACTORS = {**_BINARY, **_DECIMAL}


def parse_quantity(text: Quantity) -> Decimal:
    """The amount that `text` stands for.

    Raises:
        ValueError: if it is no quantity.
    """
    found = re.fullmatch(_PATTERN, text)
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    number, suffix = Decimal(found[1]), found[2]
    if suffix is None:
        return number
    return number * (_FACTORS[suffix] if suffix in _FACTORS else Decimal(10) ** int(suffix[1:]))
