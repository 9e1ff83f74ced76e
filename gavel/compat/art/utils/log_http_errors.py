"""A decorator that puts a server's explanation into the error of its status."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import httpx

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def log_http_errors(function: Callable[Parameters, Awaitable[Result]]) -> Callable[Parameters, Awaitable[Result]]:
    """Raises `RuntimeError` with the `detail` of the reply in place of an `httpx.HTTPStatusError`."""

    @wraps(function)
    async def explained(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return await function(*args, **kwargs)
        except httpx.HTTPStatusError as error:
            try:
                detail = error.response.json()["detail"]
            except (ValueError, KeyError, TypeError):
                raise error from None
            raise RuntimeError(f"[HTTP {error.response.status_code}] {error.request.url} {detail}") from error

    return explained
