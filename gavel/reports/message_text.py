"""What messages hold, as text for pages."""

import json
from typing import Any, cast


def pretty_json(text: Any) -> str:
    """JSON with a line for each field; what is none as it is."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return str(text)
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def shown_text(content: Any) -> str:
    """A message's content: its text; parts of other kinds by their type."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "\n".join(_part(part) for part in cast("list[Any]", content))
        case _:
            return json.dumps(content, ensure_ascii=False, default=str)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    fields = cast("dict[str, Any]", part)
    return str(fields.get("text") or f"[{fields.get('type', 'part')}]")
