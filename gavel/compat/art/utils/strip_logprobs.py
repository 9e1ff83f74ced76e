"""A copy of nested data without its log-probs, for what people read."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel


def strip_logprobs(value: Any) -> Any:
    """Dicts, lists and pydantic models without `logprobs`; the original is unchanged."""
    match value:
        case BaseModel():
            fields = {name: strip_logprobs(field) for name, field in value if name != "logprobs"}
            return value.model_copy(
                update=fields | ({"logprobs": None} if "logprobs" in type(value).model_fields else {})
            )
        case Mapping():
            items = cast("Mapping[Any, Any]", value).items()
            return {key: strip_logprobs(item) for key, item in items if key != "logprobs"}
        case list() | tuple():
            items = [strip_logprobs(item) for item in cast("Sequence[Any]", value)]
            return tuple(items) if isinstance(value, tuple) else items
        case _:
            return value
