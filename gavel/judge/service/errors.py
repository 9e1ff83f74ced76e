"""Errors of the service, each with its remedy, and with its status and kind over HTTP (http/requests.py)."""

from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any

from gavel.base.errors import GavelError
from gavel.llm.errors import CassetteError


class ServiceError(GavelError):
    """The service cannot start, or cannot do what was asked."""

    status: int = 500
    kind: str = "service-error"
    """The last part of the problem's type, for programs."""
    retry_after: int | None = None
    """Seconds after which the same request may succeed; None = it will not."""
    headers: Mapping[str, str] = {}
    more: Mapping[str, Any] = {}
    """Further fields of the problem."""

    @property
    def problem(self) -> dict[str, Any]:
        """What is answered (RFC 9457)."""
        title = HTTPStatus(self.status).phrase
        body = {"type": f"urn:gavel:problem:{self.kind}", "title": title, "status": self.status}
        return {**body, "detail": self.message, "remedy": self.remedy, **self.more}


class Problem(ServiceError):
    """A refusal of one route."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        remedy: str = "",
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, remedy)
        self.status, self.kind, self.headers, self.more = status, kind, headers or {}, more or {}


class DatabaseUnavailableError(ServiceError, CassetteError):
    """The database does not answer now. To judges it is their cassette's error."""

    status, kind, retry_after = 503, "database-unavailable", 2


class OverloadedError(ServiceError):
    """Too many groups wait already."""

    status, kind, retry_after = 429, "overloaded", 5


class InvalidRequestError(ServiceError):
    """The request cannot be judged as it is."""

    status, kind = 422, "invalid-request"


class IdempotencyConflictError(ServiceError):
    """An idempotency key was used before with another request."""

    status, kind = 422, "idempotency-key-reused"


class NotFoundError(ServiceError):
    """There is nothing of this name for this caller."""

    status, kind = 404, "not-found"


class GroupDiffersError(ServiceError):
    """The group was begun with other settings."""

    status, kind = 409, "group-differs"


class MemberDiffersError(ServiceError):
    """The group has a member of this id with other content."""

    status, kind = 409, "member-differs"


class GroupFullError(ServiceError):
    """All members of the group have arrived already."""

    status, kind = 409, "group-full"


class GroupClosedError(ServiceError):
    """The group's deadline is over."""

    status, kind = 409, "group-closed"


class GroupTooLargeError(ServiceError):
    """The members of a group are larger together than one request may be."""

    status, kind = 413, "group-too-large"


class UnauthorizedError(ServiceError):
    """The request has no API key, or one that is not valid."""

    status, kind, headers = 401, "unauthorized", {"WWW-Authenticate": "Bearer"}


class ForbiddenError(ServiceError):
    """The API key is not for this."""

    status, kind = 403, "forbidden"


class OverBudgetError(ForbiddenError):
    """The API key has spent what it may spend."""

    kind = "over-budget"


class BusyError(OverloadedError):
    """The API key has too many unfinished groups."""

    kind, retry_after = "too-many-groups", 1


class RateLimitError(OverloadedError):
    """The API key makes too many requests; the same request may succeed after `seconds`."""

    kind = "rate"

    def __init__(self, message: str, remedy: str, seconds: int) -> None:
        super().__init__(message, remedy)
        self.retry_after = seconds


class WrongKeysError(OverloadedError):
    """Too many requests with a wrong API key came from one address."""

    kind, retry_after = "wrong-keys", 60


def without_text(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """The traceback without the error's message, which may quote a transcript."""
    return RuntimeError, RuntimeError(type(error).__name__), error.__traceback__
