"""Errors of the service, with their remedies, HTTP statuses and problem kinds (http/requests.py).

Errors that are caught somewhere have their own class; any other rejection is a `Problem`."""

from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any

from gavel.base.errors import GavelError
from gavel.llm.errors import CassetteError


class ServiceError(GavelError):
    """The service cannot start, or cannot do what was requested."""

    status: int = 500
    kind: str = "service-error"
    """The last part of the problem's type, for programs."""
    headers: Mapping[str, str] = {}
    more: Mapping[str, Any] = {}
    """Additional fields of the problem."""

    @property
    def problem(self) -> dict[str, Any]:
        """The response's problem details (RFC 9457)."""
        title = HTTPStatus(self.status).phrase
        body = {"type": f"urn:gavel:problem:{self.kind}", "title": title, "status": self.status}
        return {**body, "detail": self.message, "remedy": self.remedy, **self.more}


class Problem(ServiceError):
    """A rejection. `headers`: of its response; with Retry-After the same request may succeed later."""

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
    """The database is unavailable. For judges it is an error of their cassette."""

    status, kind, headers = 503, "database-unavailable", {"Retry-After": "2"}


class OverloadedError(ServiceError):
    """Too many groups are waiting."""

    status, kind, headers = 429, "overloaded", {"Retry-After": "5"}


class InvalidRequestError(ServiceError):
    """The request cannot be judged as it is."""

    status, kind = 422, "invalid-request"


class NotFoundError(ServiceError):
    """There is nothing of this name for this caller."""

    status, kind = 404, "not-found"


class UnauthorizedError(ServiceError):
    """The request has no API key, or one that is not valid."""

    status, kind, headers = 401, "unauthorized", {"WWW-Authenticate": "Bearer"}


class OverBudgetError(ServiceError):
    """The API key has spent its limit."""

    status, kind = 403, "over-budget"


def without_text(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """The traceback without the error's message, which may quote a transcript."""
    return RuntimeError, RuntimeError(type(error).__name__), error.__traceback__
