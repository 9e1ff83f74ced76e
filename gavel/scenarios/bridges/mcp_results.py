"""What an MCP server answers, as the text that an agent gets.

Images, sound and binary resources are named with their type and size: an agent's tool message is text.
"""

import json
from collections.abc import Sequence

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

_LONGEST = 200_000
"""Characters of an answer; a longer one would fill any context."""


def result_text(result: CallToolResult) -> str:
    """The text of a tool's result: its content, or its structured content where it has no other."""
    if result.content:
        return blocks_text(result.content)
    if result.structured_content is not None:
        return bounded(json.dumps(result.structured_content, ensure_ascii=False))
    return ""


def blocks_text(blocks: Sequence[ContentBlock]) -> str:
    return bounded("\n".join(_block_text(block) for block in blocks))


def resource_text(contents: Sequence[TextResourceContents | BlobResourceContents]) -> str:
    return bounded("\n".join(_resource_text(part) for part in contents))


def bounded(text: str) -> str:
    """The text, sendable (no lone surrogates) and cut where it is longer than any context."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}\n[cut here: {len(text) - _LONGEST:,} more characters]"


def _block_text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return _binary(block.type, block.mime_type, block.data)
        case ResourceLink():
            return f"[resource {block.uri}{f': {block.description}' if block.description else ''}]"
        case EmbeddedResource():
            return _resource_text(block.resource)


def _resource_text(part: TextResourceContents | BlobResourceContents) -> str:
    if isinstance(part, TextResourceContents):
        return part.text
    return _binary("resource", f"{part.uri} {part.mime_type or ''}".strip(), part.blob)


def _binary(kind: str, name: str, base64: str) -> str:
    size = len(base64) * 3 // 4 - base64[-2:].count("=")
    return f"[{kind} {name}, {size:,} bytes, not shown]"
