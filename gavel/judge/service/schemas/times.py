"""Times of requests: Unix seconds, or as ISO 8601 writes them.

unix_seconds("2026-11-22T09:00")           1795338000.0: UTC, where no zone is named
since: Seconds = Query(ge=0)               takes both, and is a number
"""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BeforeValidator


def unix_seconds(text: str) -> float:
    """The time in a text of ISO 8601. Raises `ValueError`."""
    try:
        read = datetime.fromisoformat(text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise ValueError(f"{text:.60} is no time, such as 2026-11-22T09:00 (UTC) or Unix seconds") from None


def _as_seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return unix_seconds(value)
    except ValueError:
        return unix_seconds(value.replace(" ", "+"))  # of a zone: + is a space in an address


Seconds = Annotated[float, BeforeValidator(_as_seconds)]
