"""Every refusal over HTTP: a problem of RFC 9457, with what to do.

{"type": "urn:gavel:problem:too-many-members", "title": …, "status": 422, "detail": …, "remedy": …}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse

from gavel.judge.service.errors import InvalidRequestError, ServiceError, UnauthorizedError
from gavel.judge.service.schemas.bodies import NAME_PATTERN
from gavel.judge.service.schemas.records import Record

MEDIA_TYPE = "application/problem+json"
_PREFIX = "urn:gavel:problem:"
_SHOWN_ERRORS = 10
NAME_RULE = "a name that stands in an address has no slash and no NUL, and is neither . nor .."


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


def invalid(detail: str, remedy: str) -> Problem:
    """A request that cannot be judged as it is (422)."""
    return Problem(InvalidRequestError.status, InvalidRequestError.kind, detail, remedy)


def validation_problem(errors: Sequence[Any]) -> Problem:
    """The problem of what pydantic found, with the first mistakes and their places."""
    found = [{"at": ".".join(map(str, one["loc"])), "message": _words(one)} for one in errors[:_SHOWN_ERRORS]]
    problem = invalid(f"{found[0]['at'] or 'the body'}: {found[0]['message']}", "GET /openapi.json describes it.")
    problem.more = {"errors": found}
    return problem


def _words(error: Any) -> str:
    is_name = error["type"] == "string_pattern_mismatch" and error.get("ctx", {}).get("pattern") == NAME_PATTERN
    return NAME_RULE if is_name else error["msg"]


def problem_of(error: ServiceError) -> Problem:
    """The problem that an error of the service is over HTTP."""
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = "Bearer"
    return Problem(error.status, error.kind, error.message, error.remedy, headers)


def raise_failure(record: Record) -> None:
    """Raises the problem of a judgement that failed; nothing for any other."""
    if (verdict := record.verdict) is not None and verdict.group is None:
        raise Problem(502, "judge-failed", verdict.problem or "", verdict.remedy, {}, {"judgement": record.id})


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI descriptions of these statuses, all of them problems."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemOut"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}
