"""What the machine complains of, said so that a model knows what to change."""

import errno

from mcp.server.mcpserver.exceptions import ToolError


def explained(error: Exception) -> str:
    """The sentence for a failure that a call can have; it holds no path of the host."""
    match error:
        case ToolError():
            return str(error)
        case OSError():
            return _of_the_system(error)
        case MemoryError():
            return "out of memory; the file is too large for this tool"
        case RecursionError():
            return "the file is nested too deeply for this tool"
        case _:
            return f"a reason of its own ({type(error).__name__})"


def _of_the_system(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "the disk is full; delete files that are no longer needed"
        case errno.EFBIG:
            return "the file would be larger than the sandbox allows"
        case _:
            return f"the file system refused: {error.strerror or type(error).__name__}"
