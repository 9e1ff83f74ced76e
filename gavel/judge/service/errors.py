"""Errors of the service, each with its remedy. How they look over HTTP: problems.py."""

from types import TracebackType

from gavel.base.errors import GavelError
from gavel.llm.errors import CassetteError


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


class GroupConflictError(ServiceError):
    """A member does not fit into the group that it names."""


class GroupDiffersError(GroupConflictError):
    """The group was begun with other settings."""


class MemberDiffersError(GroupConflictError):
    """The group has a member of this id with other content."""


class GroupFullError(GroupConflictError):
    """All members of the group have arrived already."""


class GroupClosedError(GroupConflictError):
    """The group's deadline is over."""


class GroupTooLargeError(ServiceError):
    """The members of a group are larger together than one request may be."""


class UnauthorizedError(ServiceError):
    """The request has no API key, or one that is not valid."""


class ForbiddenError(ServiceError):
    """The API key is not for this."""


class OverBudgetError(ForbiddenError):
    """The API key has spent what it may spend."""


class BusyError(OverloadedError):
    """The API key has too many unfinished groups; the same request may succeed later."""


class RateLimitError(OverloadedError):
    """The API key makes too many requests; the same request may succeed after `seconds`."""

    def __init__(self, message: str, remedy: str, seconds: int) -> None:
        super().__init__(message, remedy)
        self.seconds = seconds


def without_text(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """The traceback without the error's message, which may quote a transcript."""
    return RuntimeError, RuntimeError(type(error).__name__), error.__traceback__
