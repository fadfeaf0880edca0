"""Harnesses by name."""

from seatrial_api.errors import InvalidInputError

_IMPORT_PATHS = {
    "archipelago": "seatrial_rollout.harness.archipelago:Archipelago",
    "single-turn": "seatrial_rollout.harness.single_turn:SingleTurn",
    "terminus-2": "seatrial_rollout.harness.terminus:Terminus2",
    "mini-swe-agent": "seatrial_rollout.harness.mini_swe:MiniSweAgent",
    "opencode": "seatrial_rollout.harness.opencode:OpenCode",
    "codex": "seatrial_rollout.harness.codex:Codex",
    "claude-code": "seatrial_rollout.harness.claude_code:ClaudeCode",
}


def import_path(name: str) -> str:
    """The `module:Class` under which Harbor finds a harness.

    Raises:
        InvalidInputError: Unknown.
    """
    if name in _IMPORT_PATHS:
        return _IMPORT_PATHS[name]
    here = ", ".join(_IMPORT_PATHS)
    module, separator, attribute = name.partition(":")
    if separator and module and attribute:
        return name
    raise InvalidInputError(
        f"harness.name: {name} is unknown; use one of {here}, or a class of your own as module:Class"
    )
