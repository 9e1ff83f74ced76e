"""Requests whose reply was lost on the way: the server has worked, and may charge for it."""

from collections.abc import Iterator

import openai

from gavel.base.network import exception_types

_LOST = (
    openai.APITimeoutError,
    *exception_types("ReadError"),
    *exception_types("ReadTimeout"),
    *exception_types("RemoteProtocolError"),
    ConnectionResetError,
)
"""The connection broke, or the wait ended, after the request was sent."""
_NOT_SENT = (
    *exception_types("ConnectError"),
    *exception_types("ConnectTimeout"),
    *exception_types("PoolTimeout"),
    ConnectionRefusedError,
)
_ANSWERED = exception_types("HTTPStatusError")


def may_be_paid(error: BaseException) -> bool:
    """Whether a failed request may cost something: it was sent, and the server did not answer with an error.

    What is neither, such as a body that is cut off, may.
    """
    causes = list(_causes(error))
    if any(isinstance(cause, _ANSWERED) for cause in causes):
        return False
    if any(isinstance(cause, _LOST) for cause in causes):
        return True
    return not any(isinstance(cause, _NOT_SENT) or _is_refusal(cause) for cause in causes)


def _is_refusal(error: BaseException) -> bool:
    status = getattr(error, "status_code", None)
    return isinstance(status, int) and 400 <= status < 500


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
