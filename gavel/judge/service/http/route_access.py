"""What routes are given: the engine, and who asks; and which queries they take."""

from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated, get_args, get_origin

from fastapi import Depends, Header, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import Request

from gavel.judge.service.engine.caller import Caller
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.http.problems import Problem

_bearer = HTTPBearer(auto_error=False, description="A key of `gavel keys create`, where the service has keys.")


async def _engine(request: Request) -> Engine:
    return request.app.state.engine


async def _caller(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None
) -> Caller:
    """Also takes Basic authorization and X-API-Key, so it reads the headers; the parameter is for the description."""
    engine: Engine = request.app.state.engine
    authorization = request.headers.get("authorization")
    if authorization is None and (key := request.headers.get("x-api-key")) is not None:
        authorization = f"Bearer {key}"
    caller = await engine.admission.authenticate(authorization)
    traceparent = engine.tracing.traceparent(request.headers.get("traceparent"))
    return replace(caller, traceparent=traceparent) if traceparent else caller


async def known_parameters(request: Request) -> None:
    """Refuses a query with a name that the route does not know: a filter with a slip would show everything."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = [field.alias for field in route.dependant.query_params]
    lists = [field.alias for field in route.dependant.query_params if _takes_many(field.field_info.annotation)]
    for name in request.query_params:
        if name not in known:
            near = get_close_matches(name, known, 1)
            there_are = f"There are: {', '.join(known)}." if known else "It has none."
            remedy = f"Did you mean {near[0]}?" if near else there_are
            raise Problem(422, "invalid-request", f"there is no query parameter {name[:60]!r} here.", remedy)
        if name not in lists and len(request.query_params.getlist(name)) > 1:
            raise Problem(422, "invalid-request", f"the query has several values of {name}.", "Send one of them.")


def _takes_many(annotation: object) -> bool:
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))


TheEngine = Annotated[Engine, Depends(_engine)]
TheCaller = Annotated[Caller, Depends(_caller)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A name of this request: sent again with the same body, it gives the same judgement.",
    ),
]
