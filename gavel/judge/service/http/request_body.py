"""The body of a request: read within limits of size and time, and checked against a model."""

import asyncio
from email.message import Message
from typing import Annotated, Any, TypeVar

from fastapi import Depends
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from gavel.judge.service.config import ServiceLimits
from gavel.judge.service.http.problems import Problem, told
from gavel.judge.service.http.route_access import TheCaller
from gavel.judge.service.http.strict_json import NotJsonError, check_json

_Model = TypeVar("_Model", bound=BaseModel)
_CLOSE = {"Connection": "close"}
SHOWN_ERRORS = 10
_JSON = "application/json"
_WANTED = (
    "Send one JSON object in UTF-8 without a byte order mark; no NaN or Infinity, no name twice in an object, no half "
    "of a surrogate pair (JavaScript's toWellFormed() replaces it), and not nested deeper than 200."
)
_OF_CURL = "application/x-www-form-urlencoded"
"""What `curl -d` says of any body. Browsers say it too, for forms of other sites; those name their origin."""


async def read_body(request: Request) -> bytes:
    """The whole body. Raises `Problem` for one that is too large, too slow, or not JSON by its headers.

    The rest of a body that is refused is still taken from the connection, and dropped, so that its sender reads why.
    """
    check_headers(request)
    return await read_bytes(request, request.app.state.engine.config.limits)


async def read_bytes(request: Request, limits: ServiceLimits) -> bytes:
    """The whole body, of any type. Raises `Problem` for one that is too large or too slow."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                chunks.append(chunk)
                size += len(chunk)
                if size > limits.body_bytes:
                    raise too_large(limits)
    except TimeoutError:
        raise too_slow(limits) from None
    except ClientDisconnect:
        raise Problem(400, "incomplete", "the connection was closed before the body was complete.") from None
    return b"".join(chunks)


async def _body(request: Request, _: TheCaller) -> bytes:
    return await read_body(request)


Body = Annotated[bytes, Depends(_body)]
"""Of a route: the request's body as bytes. It is not read before the caller is known."""


def check_headers(request: Request, *types: str) -> None:
    """Raises `Problem` for a body that is too large, encoded or no JSON by its headers."""
    headers, limits = request.headers, request.app.state.engine.config.limits
    codings = f"{headers.get('content-encoding', '')},{headers.get('transfer-encoding', '')}".lower().split(",")
    if encodings := {coding.strip() for coding in codings} - {"", "identity", "chunked"}:
        encoding = ", ".join(sorted(encodings))
        raise Problem(415, "content-encoding", f"the body is encoded as {encoding:.40}.", "Send it as it is.")
    content = Message()
    content["Content-Type"] = headers.get("content-type", _JSON)
    kind, charset = content.get_content_type(), content.get_content_charset("utf-8")
    from_curl = kind == _OF_CURL and "origin" not in headers
    if not (from_curl or kind in (types or (_JSON,)) or kind.endswith("+json")) or charset not in ("utf-8", "utf8"):
        accepted = ", ".join(types or (_JSON,))
        raise Problem(
            415,
            "media-type",
            f"the body is {kind:.60}, charset {charset:.40}.",
            f"Send {accepted} in UTF-8, and say so in Content-Type.",
        )
    length = headers.get("content-length", "")
    if length.isdigit() and not types and int(length) > limits.body_bytes:
        raise too_large(limits)


def parsed(model: type[_Model], body: bytes) -> _Model:
    """The model in a body. Raises `Problem` with the place of every mistake."""
    try:
        check_json(body)
        return model.model_validate_json(body)
    except NotJsonError as error:
        raise Problem(400, "not-json", f"the body is no JSON: {error}.", _WANTED) from None
    except ValidationError as error:
        raise _invalid(error) from None


def built(model: type[_Model], **values: Any) -> _Model:
    """The model with these values, translated from another body. Raises `Problem` as `parsed` does."""
    try:
        return model(**values)
    except ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> Problem:
    errors = told(error.errors(include_url=False, include_input=False)[:SHOWN_ERRORS])
    more: dict[str, Any] = {"errors": errors}
    first = f"{errors[0]['at'] or 'the body'}: {errors[0]['message']}"
    return Problem(422, "invalid-request", first, "GET /openapi.json describes the request.", {}, more)


def too_large(limits: ServiceLimits) -> Problem:
    return Problem(
        413,
        "too-large",
        f"the body is larger than {limits.body_bytes:,} bytes.",
        "Send a smaller group, or raise the service's setting limits.body_bytes.",
    )


def too_slow(limits: ServiceLimits) -> Problem:
    return Problem(
        408,
        "too-slow",
        f"the body did not arrive within {limits.body_seconds:g} s.",
        "Send it again over a better connection, or raise the service's setting limits.body_seconds.",
        {**_CLOSE},
    )


def body_of(model: type[BaseModel], example: dict[str, Any] | None = None, media_type: str = _JSON) -> dict[str, Any]:
    """`openapi_extra` of a route that takes a body of this model; openapi.py adds the model's schema."""
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    if example is not None:
        content["example"] = example
    return {"requestBody": {"required": media_type == _JSON, "content": {media_type: content}}}
