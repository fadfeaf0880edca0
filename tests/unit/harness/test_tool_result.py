"""What the model reads of a tool's answer."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from seatrial_rollout.harness.tool_result import cut, result_text

LIMIT = ToolResultLimit(max_chars=10, head_chars=4, tail_chars=3)
DATA = base64.b64encode(b"x" * 5).decode()


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (TextContent(type="text", text="seven"), "seven"),
        (TextContent(type="text", text="0123456789ab"), "0123\n[... 5 characters cut ...]\n9ab"),
        (
            ImageContent(type="image", data=DATA, mime_type="image/png"),
            "[image, image/png, 5 bytes: not shown, this model reads text only]",
        ),
        (
            AudioContent(type="audio", data=DATA, mime_type="audio/wav"),
            "[audio, audio/wav, 5 bytes: not shown, this model reads text only]",
        ),
        (
            EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///a", text="a,b")),
            "a,b",
        ),
        (
            EmbeddedResource(type="resource", resource=BlobResourceContents(uri="file:///a.pdf", blob=DATA)),
            "[file file:///a.pdf, unknown type, 5 bytes: not shown, this model reads text only]",
        ),
        (
            ResourceLink(type="resource_link", uri="file:///a.pdf", name="a", mime_type="application/pdf"),
            "[link to file:///a.pdf, application/pdf: not opened]",
        ),
    ],
    ids=["text", "long text", "image", "audio", "text file", "binary file", "link"],
)
def test_each_kind_of_block_is_shown_or_described(block: ContentBlock, text: str) -> None:
    assert result_text(CallToolResult(content=[block]), LIMIT) == text


def test_each_block_is_cut_by_itself() -> None:
    blocks: list[ContentBlock] = [TextContent(type="text", text="0123456789"), TextContent(type="text", text="z" * 11)]
    assert result_text(CallToolResult(content=blocks), LIMIT) == ("0123456789\nzzzz\n[... 4 characters cut ...]\nzzz")


def test_structured_content_alone_is_shown_as_json() -> None:
    result = CallToolResult(content=[], structured_content={"größe": 3})
    assert result_text(result, ToolResultLimit()) == '{"größe": 3}'


def test_an_empty_answer_says_so() -> None:
    assert result_text(CallToolResult(content=[]), LIMIT) == "(the tool returned nothing)"


@given(text=st.text(), head=st.integers(1, 20), tail=st.integers(0, 20), extra=st.integers(0, 5))
def test_cutting_keeps_head_and_tail_and_counts_the_rest(text: str, head: int, tail: int, extra: int) -> None:
    limit = ToolResultLimit(max_chars=head + tail + extra, head_chars=head, tail_chars=tail)
    shown = cut(text, limit)
    if len(text) <= limit.max_chars:
        assert shown == text
        return
    missing = len(text) - head - tail
    assert shown == text[:head] + f"\n[... {missing} characters cut ...]\n" + text[head + missing :]
