"""What a stream may show of a turn that is still being sampled.

Text is shown once nothing that follows can take it back: not the beginning of a tool call or of a stop string, no half
of a character, no space that may be stripped from the end.
"""

import re
from collections.abc import Callable, Sequence

from renderers import ParsedResponse

from gavel.llm.types import Message

_OPENING = re.compile(r"[<\[{`][^\s>\]}]{0,32}\Z")
"""What a parser may yet read as the beginning of a tool call, at the end of a text."""
_HALF = "\ufffd"
"""How bytes decode that are no whole character yet."""
_DATA = ("{", "[", "<", "`")
"""How a text begins that may turn out to be a call as a whole."""
_FIELDS = ("reasoning_content", "content")


class StreamedText:
    """The text of one turn, shown piece by piece."""

    def __init__(self, parse: Callable[[Sequence[int]], ParsedResponse], stop: Sequence[str], tools: bool) -> None:
        self._parse = parse
        self._stop = stop
        self._tools = tools
        self._shown: dict[str, str] = dict.fromkeys(_FIELDS, "")
        self._parsed = 0
        """Tokens at the last look."""

    def more(self, token_ids: Sequence[int]) -> dict[str, str] | None:
        """What can be shown since the last call, by field; None where it is too early to look again."""
        if len(token_ids) < self._parsed + 1 + self._parsed // 64:  # parsing takes a turn's length each time
            return None
        self._parsed = len(token_ids)
        parsed = self._parse(token_ids)
        if parsed.tool_calls:
            return {}
        content = parsed.content
        reasoning = (parsed.reasoning_content or "").lstrip()  # as most parsers do once it is complete
        safe = {"content": self._certain(content), "reasoning_content": self._certain(reasoning)}
        if self._tools and content.lstrip().startswith(_DATA):
            safe["content"] = ""
        return {name: piece for name, text in safe.items() if (piece := self._piece(name, text))}

    def rest(self, reply: Message) -> dict[str, str]:
        """What is left of the whole reply. A text that turned out to be another than was shown stays as it was shown,
        in `reply` too."""
        found: dict[str, str] = {}
        for name in _FIELDS:
            whole, shown = reply.get(name) or "", self._shown[name]
            if name == "reasoning_content":
                whole = whole.lstrip()
            found[name] = whole.removeprefix(shown) if whole.startswith(shown) else ""
            if name in reply or shown:
                reply[name] = shown + found[name]
        return {name: piece for name, piece in found.items() if piece}

    def _piece(self, name: str, text: str) -> str:
        shown = self._shown[name]
        if not text.startswith(shown):
            return ""
        self._shown[name] = text
        return text[len(shown) :]

    def _certain(self, text: str) -> str:
        before = None
        while text != before:
            before, text = text, _OPENING.sub("", text.rstrip().rstrip(_HALF))
        for stop in self._stop:
            if (at := text.find(stop)) >= 0:
                text = text[:at]
            longest = next((n for n in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:n])), 0)
            text = text[: len(text) - longest]
        return text
