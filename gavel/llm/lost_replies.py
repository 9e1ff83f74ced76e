"""Requests whose reply was lost on the way: the server has worked, and may charge for it."""

import json
from collections.abc import Iterator

import httpx
import openai

_LOST = (httpx.ReadError, httpx.ReadTimeout, httpx.RemoteProtocolError, ConnectionResetError, json.JSONDecodeError)
"""The connection broke after the request was sent, or what arrived is cut off."""


def may_be_paid(error: BaseException) -> bool:
    """Whether a failed request may cost something: it was sent, and no error came back for it."""
    causes = list(_causes(error))
    if any(isinstance(cause, httpx.HTTPStatusError) for cause in causes):
        return False
    return any(isinstance(cause, (openai.APITimeoutError, *_LOST)) for cause in causes)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
