"""The fields of messages and blocks: which of them are content, and how an unknown one is shown."""

import json
from typing import Any

from gavel.judge.prompt.plain_json import plain_json

_IDS = "type role id object index call_id tool_call_id tool_use_id caller phase policy_version"
_BOOKKEEPING = (
    "finish_reason stop_reason stop_sequence logprobs token_logprobs token_ids prompt_token_ids cache_control weight "
    "prefix created created_at timestamp model usage"
)
_THOUGHTS = (
    "reasoning reasoning_content reasoning_details reasoning_text thinking thinking_blocks encrypted_content signature "
    "extra_content thought_signature thoughtSignature"
)
NOT_CONTENT = frozenset(f"{_IDS} {_BOOKKEEPING} {_THOUGHTS}".split())
"""Fields that are never shown. An unknown field is shown as JSON."""
MEDIA = frozenset(("attachments", "audio", "documents", "file", "files", "image", "images", "media", "video", "videos"))
"""Fields of a message that hold more than text."""


def field_text(key: str, value: Any) -> str:
    """`[name: "Alice"]`."""
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else plain_json(value, sort=True)
    return f"[{key}: {shown}]"


def is_bookkeeping(key: str, value: Any) -> bool:
    """Whether a field is left out: it holds an id, bookkeeping, thoughts, or nothing."""
    return key in NOT_CONTENT or is_empty(value) or (key == "status" and value in ("completed", "success"))


def is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)
