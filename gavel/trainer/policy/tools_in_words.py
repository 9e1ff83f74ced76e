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
    """The messages with `tools` in words. `system`: the format has system turns; without, the user's first turn begins
    with what they would say."""
    told = _TEMPLATE.render(tools=[tool if "function" in tool else {"function": tool} for tool in tools])
    said = [_plain(message) for message in messages]
    if said and said[0]["role"] == "system":
        told = f"{said[0]['content']}\n\n{told}"
        said = said[1:]
    found: list[dict[str, Any]] = []
    for message, given in zip(said, messages[len(messages) - len(said) :], strict=True):
        if given["role"] == "tool" and found and found[-1].get("results"):
            found[-1]["content"] += f"\n{message['content']}"
        else:
            found.append({**message, "results": given["role"] == "tool"})
    for message in found:
        del message["results"]
    if system:
        return [{"role": "system", "content": told}, *found]
    first = next((message for message in found if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": told}, *found]
    first["content"] = f"{told}\n\n{first['content']}"
    return found


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls, or whose result, are text."""
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    return plain | {"content": content + "".join(map(_call, message.get("tool_calls") or ()))}


def _call(call: Mapping[str, Any]) -> str:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    given = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {given}}}\n</tool_call>'
