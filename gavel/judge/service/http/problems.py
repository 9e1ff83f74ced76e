"""Every refusal over HTTP: a problem of RFC 9457, with what to do.

    {"type": "urn:gavel:problem:too-many-members", "title": …, "status": 422, "detail": …, "remedy": …}

The last part of `type` is for programs: each kind is listed below, once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse

from gavel.judge.service.errors import (
    BusyError,
    DatabaseUnavailableError,
    ForbiddenError,
    GroupClosedError,
    GroupConflictError,
    GroupDiffersError,
    GroupFullError,
    GroupTooLargeError,
    IdempotencyConflictError,
    InvalidRequestError,
    MemberDiffersError,
    NotFoundError,
    OverBudgetError,
    OverloadedError,
    RateLimitError,
    ServiceError,
    UnauthorizedError,
)
from gavel.judge.service.schemas.bodies import NAME_PATTERN

MEDIA_TYPE = "application/problem+json"
_PREFIX = "urn:gavel:problem:"
_SHOWN_ERRORS = 10


class ProblemOut(BaseModel):
    """Why a request was refused (RFC 9457)."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    type: str
    """`urn:gavel:problem:` and the kind, for programs."""
    title: str
    status: int
    detail: str
    remedy: str = ""
    """What to do."""


@dataclass(eq=False)
class Problem(Exception):
    """Raised by routes; answered as a problem."""

    status: int
    kind: str
    """The last part of its type: "too-large"."""
    detail: str
    remedy: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields."""

    @property
    def body(self) -> dict[str, Any]:
        title = HTTPStatus(self.status).phrase
        body = {"type": f"{_PREFIX}{self.kind}", "title": title, "status": self.status, "detail": self.detail}
        return {**body, "remedy": self.remedy, **self.more}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, dict(self.headers), MEDIA_TYPE)


def validation_problem(errors: Sequence[Any]) -> Problem:
    """The problem of what pydantic found, with the first mistakes and their places."""
    found = [{"at": ".".join(map(str, one["loc"])), "message": _words(one)} for one in errors[:_SHOWN_ERRORS]]
    first = f"{found[0]['at'] or 'the body'}: {found[0]['message']}"
    return Problem(422, "invalid-request", first, "GET /openapi.json describes the request.", {}, {"errors": found})


def _words(error: Any) -> str:
    is_name = error["type"] == "string_pattern_mismatch" and error.get("ctx", {}).get("pattern") == NAME_PATTERN
    return NAME_RULE if is_name else error["msg"]


NAME_RULE = "a name that stands in an address has no slash and no NUL, and is neither . nor .."
_KINDS: dict[type[ServiceError], tuple[int, str, dict[str, str]]] = {
    InvalidRequestError: (422, "invalid-request", {}),
    IdempotencyConflictError: (422, "idempotency-key-reused", {}),
    NotFoundError: (404, "not-found", {}),
    OverloadedError: (429, "overloaded", {"Retry-After": "5"}),
    DatabaseUnavailableError: (503, "database-unavailable", {"Retry-After": "2"}),
    UnauthorizedError: (401, "unauthorized", {"WWW-Authenticate": "Bearer"}),
    ForbiddenError: (403, "forbidden", {}),
    OverBudgetError: (403, "over-budget", {}),
    BusyError: (429, "too-many-groups", {"Retry-After": "1"}),
    RateLimitError: (429, "rate", {}),
    GroupDiffersError: (409, "group-differs", {}),
    MemberDiffersError: (409, "member-differs", {}),
    GroupFullError: (409, "group-full", {}),
    GroupClosedError: (409, "group-closed", {}),
    GroupConflictError: (409, "group-conflict", {}),
    GroupTooLargeError: (413, "group-too-large", {}),
    ServiceError: (500, "service-error", {}),
}


def problem_of(error: ServiceError) -> Problem:
    """The problem that an error of the service is over HTTP."""
    status, kind, headers = next(_KINDS[cls] for cls in type(error).__mro__ if cls in _KINDS)
    if isinstance(error, RateLimitError):
        headers = {"Retry-After": str(error.seconds)}
    return Problem(status, kind, error.message, error.remedy, headers)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI descriptions of these statuses, all of them problems."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemOut"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}
