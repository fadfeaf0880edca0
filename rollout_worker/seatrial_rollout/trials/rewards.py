"""What a verifier wrote, read strictly: a figure is a finite number or the verifier failed."""

import json
import math
from collections.abc import Mapping

_SHOWN_CHARS = 200


class VerifierError(Exception):
    """The verifier left no reward that can be read; its text says what was found instead."""


def parse_rewards(reward_json: str | None, reward_text: str | None) -> dict[str, float]:
    """Figures from `reward.json`, or from `reward.txt` where there is none; where both are, they must agree.

    A program that a verifier runs may write what the verifier itself does not.

    Args:
        reward_json: Content of `reward.json`: an object with numbers, `reward` among them, or one number.
        reward_text: Content of `reward.txt`: one number.

    Returns:
        Every figure, `reward` included.

    Raises:
        VerifierError: if there is no reward, a figure is no finite number, or there are two rewards that differ.
    """
    if reward_json is not None:
        figures = _from_json(reward_json)
        if reward_text is not None and _from_text(reward_text) != figures["reward"]:
            raise VerifierError(f"reward.json says {figures['reward']:g}, reward.txt {_shorten(reward_text.strip())}")
        return figures
    if reward_text is not None:
        return {"reward": _from_text(reward_text)}
    raise VerifierError("no reward.json and no reward.txt")


def _from_text(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise VerifierError(f"reward.txt holds {_shorten(text)}, which is no number") from None
    return _finite("reward", value, "reward.txt")


def _from_json(text: str) -> dict[str, float]:
    try:
        content = json.loads(text)
    except ValueError as exc:
        raise VerifierError(f"reward.json holds {_shorten(text)}, which is no JSON: {exc}") from None
    figures = content if isinstance(content, Mapping) else {"reward": content}
    scores = {}
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise VerifierError(f"reward.json: {name} is {_shorten(json.dumps(value))}, which is no number")
        scores[name] = _finite(name, value, "reward.json")
    if "reward" not in scores:
        raise VerifierError(f"reward.json has no reward, only {', '.join(scores) or 'nothing'}")
    return scores


def _finite(name: str, value: float, file: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise VerifierError(f"{file}: {name} is {number}, which is not finite")
    return number


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + " ...")
