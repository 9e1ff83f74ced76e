"""Errors of the service, each with its remedy. How they look over HTTP: problems.py."""

from types import TracebackType

from gavel.llm.errors import CassetteError, GavelError


class ServiceError(GavelError):
    """The service cannot start, or cannot do what was asked."""


class DatabaseUnavailableError(ServiceError, CassetteError):
    """The database does not answer now; the same request may succeed later. To judges it is their cassette's error."""


class OverloadedError(ServiceError):
    """Too many groups wait already; the same request may succeed later."""


class InvalidRequestError(ServiceError):
    """The request cannot be judged as it is."""


class IdempotencyConflictError(ServiceError):
    """An idempotency key was used before with another request."""


class NotFoundError(ServiceError):
    """There is nothing of this name for this caller."""


def without_text(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """The traceback without the error's message, which may quote a transcript."""
    return RuntimeError, RuntimeError(type(error).__name__), error.__traceback__
