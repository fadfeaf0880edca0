"""How a conversation that fills its context is summed up, and how the next one begins. Pure functions."""

SUM_UP = (
    "\n\n[Only about {tokens} tokens of context are left. Call no tool now: answer with a summary of what you have "
    "done and found, and of what is left to do. You go on from it in a conversation that begins anew with your task.]"
)
"""Asks for a summary, inside of a tool message."""

NOT_CALLED = "not called: a summary was asked for, and the conversation began anew"
"""What becomes of the calls of a turn that was to be a summary."""

_WORKED = (
    "[You have worked on this task already, and what was done is done. The conversation so far filled your context and "
    "was summed up."
)


def begin_anew(instruction: str, summary: str, pages: str) -> str:
    """The task's words for an agent that has been at it for a while.

    Args:
        instruction: The task.
        summary: What the agent said when it was asked to sum up.
        pages: What its notebook holds; empty if nothing does.
    """
    said = f"Your summary:\n{summary or '(none)'}"
    return "\n\n".join(filter(None, [instruction, _WORKED, said, pages])) + "]"
