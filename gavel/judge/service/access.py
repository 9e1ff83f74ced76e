"""What routes are given: the engine, and who asks."""

from typing import Annotated

from fastapi import Depends, Header
from starlette.requests import Request

from gavel.judge.service.caller import ANYONE, Caller
from gavel.judge.service.engine import Engine


async def _engine(request: Request) -> Engine:
    return request.app.state.engine


async def _caller(request: Request) -> Caller:
    return ANYONE


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
