"""JSON as a judge reads it: compact, without escapes, and without loss."""

import json
from decimal import Decimal
from typing import Any

_ALWAYS_EXACT = 16
"""Characters with a point among them, of which a float holds every digit."""


def plain_json(value: Any, *, sort: bool = False) -> str:
    """The value as compact JSON without escapes. A text stays as it is unless it is a JSON object or array.

    JSON that a Python value cannot hold without loss (a name twice in an object, a number of too many digits) stays.
    """
    if isinstance(value, str) and not value.lstrip().startswith(("{", "[")):
        return value
    try:
        parsed = (
            json.loads(value, object_pairs_hook=_without_loss, parse_float=_exact) if isinstance(value, str) else value
        )
        return json.dumps(parsed, ensure_ascii=False, separators=(",", ":"), sort_keys=sort, default=str)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        return str(value)


def _without_loss(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name occurs twice")
    return fields


def _exact(digits: str) -> float:
    value = float(digits)
    if len(digits) <= _ALWAYS_EXACT and "e" not in digits and "E" not in digits:
        return value
    if Decimal(digits) != Decimal(repr(value)):
        raise ValueError("a number has too many digits")
    return value
