"""What the model reads of a tool's answer. Pure functions."""

import base64
import json

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from seatrial_api.spec.harness import ToolResultLimit


def result_text(result: CallToolResult, limit: ToolResultLimit) -> str:
    """All blocks of a result as text, each text cut to `limit`; what is no text is described."""
    blocks = [_block_text(block, limit) for block in result.content]
    if not blocks and result.structured_content is not None:
        blocks = [cut(json.dumps(result.structured_content, ensure_ascii=False), limit)]
    return "\n".join(blocks) or "(the tool returned nothing)"


def cut(text: str, limit: ToolResultLimit) -> str:
    """The text, or its head and its tail with a note between them that says how much is missing."""
    if len(text) <= limit.max_chars:
        return text
    tail = text[len(text) - limit.tail_chars :]
    missing = len(text) - limit.head_chars - limit.tail_chars
    return f"{text[: limit.head_chars]}\n[... {missing} characters cut ...]\n{tail}"


def _block_text(block: ContentBlock, limit: ToolResultLimit) -> str:
    match block:
        case TextContent():
            return cut(block.text, limit)
        case ImageContent():
            return _unreadable("image", block.mime_type, block.data)
        case AudioContent():
            return _unreadable("audio", block.mime_type, block.data)
        case EmbeddedResource():
            return _resource_text(block.resource, limit)
        case ResourceLink():
            return f"[link to {block.uri}, {block.mime_type or 'unknown type'}: not opened]"


def _resource_text(resource: TextResourceContents | BlobResourceContents, limit: ToolResultLimit) -> str:
    match resource:
        case TextResourceContents():
            return cut(resource.text, limit)
        case BlobResourceContents():
            return _unreadable(f"file {resource.uri}", resource.mime_type, resource.blob)


def _unreadable(what: str, mime_type: str | None, data: str) -> str:
    size = len(base64.b64decode(data, validate=False))
    return f"[{what}, {mime_type or 'unknown type'}, {size} bytes: not shown, this model reads text only]"
