"""A tool call as a scripted agent writes it, in Qwen's chat format: what embedded policies are cloned from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """A demonstrated tool call."""

    name: str
    arguments: Mapping[str, str | int | float]

    @property
    def text(self) -> str:
        body = json.dumps({"name": self.name, "arguments": dict(self.arguments)})
        return f"<tool_call>\n{body}\n</tool_call>"
