"""Tools for a chat template that shows none, or whose calls nobody here can read back: in the words of its turns.

    in_words([user, call, result], tools)    [system, user, assistant, user]

The tools are described in the first turn, calls are JSON between `<tool_call>` tags and results are the user's. What
comes of it any chat template renders, and a conversation without tools is not touched.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

import gavel.prompts

_FILE = Path(gavel.prompts.__file__).with_name("trainer") / "tools_in_words.j2"
_ENVIRONMENT = Environment(undefined=StrictUndefined)
_ENVIRONMENT.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)  # Jinja's own escapes for HTML
_TEMPLATE = _ENVIRONMENT.from_string(_FILE.read_text(encoding="utf-8").rstrip("\n"))


def in_words(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, system: bool = True
) -> list[dict[str, Any]]:
    """The messages with `tools` in words; without tools, calls and results alone. `system`: the format has system
    turns; without, the user says what they would."""
    said = [_plain(message) for message in messages]
    if tools:
        described = [tool if "function" in tool else {"function": tool} for tool in tools]
        told = _TEMPLATE.render(tools=described)
        if messages and messages[0]["role"] == "system":
            said[0]["content"] += f"\n\n{told}"
        else:
            said.insert(0, {"role": "system", "content": told})
    joins = ["tool", *([] if system else ["system"])]
    """Roles that become the user's, whose turn goes on with what the user says then."""
    found: list[dict[str, Any]] = []
    before = ""
    for message in said:
        role = message["role"]
        if role in joins:
            message["role"] = "user"
        if before in joins and message["role"] == "user":
            between = "\n" if before == role else "\n\n"
            found[-1]["content"] += between + message["content"]
        else:
            found.append(message)
        before = role
    return found


def speaks_of_tools(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there are calls or results among the messages."""
    return any(message.get("role") == "tool" or message.get("tool_calls") for message in messages)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls, or whose result, are text."""
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "tool", "content": f"<tool_response>\n{content}\n</tool_response>"}
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    return plain | {"content": content + "\n".join(map(_call, message.get("tool_calls") or ()))}


def _call(call: Mapping[str, Any]) -> str:
    name, given = call["function"]["name"], call["function"]["arguments"]
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return _between_tags(name, given)
    return _between_tags(name, json.dumps(given, ensure_ascii=False))


def _between_tags(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n</tool_call>'
