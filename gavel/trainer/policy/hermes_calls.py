"""Tool calls as JSON between `<tool_call>` tags, for tokenizers in which these tags are not tokens of their own."""

import json
import re
from typing import Any

from renderers import ParsedToolCall, ToolCallParseStatus

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>|<tool_call>.*", re.DOTALL)


class HermesCalls:
    """A tool parser of the `renderers` library that reads the text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def extract(self, ids: list[int]) -> tuple[list[int], list[ParsedToolCall]]:
        """The ids of the text before the first call, and the calls."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        first = _CALL.search(text)
        if first is None:
            return ids, []
        before = self._tokenizer.encode(text[: first.start()], add_special_tokens=False)
        return before, [_read(match) for match in _CALL.finditer(text)]


def _read(match: re.Match[str]) -> ParsedToolCall:
    raw, closed = match.group(), match.group(1)
    if closed is None:
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.UNCLOSED_BLOCK)
    try:
        call = json.loads(closed)
    except ValueError:
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.INVALID_JSON)
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.MISSING_NAME)
    return ParsedToolCall(raw=raw, name=name, arguments=call.get("arguments", {}), status=ToolCallParseStatus.OK)
