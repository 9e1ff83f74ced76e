"""A message as text for people."""

from collections.abc import Mapping
from typing import Any


def format_message(message: Mapping[str, Any]) -> str:
    """The role, the content, and one line for each tool call."""
    content = message.get("content") or message.get("refusal") or ""
    calls = [call["function"] for call in message.get("tool_calls") or () if "function" in call]
    lines = [f"{call['name']}({call['arguments']})" for call in calls]
    return "\n".join([f"{message['role'].capitalize()}:", *([content] if content or not lines else []), *lines])
