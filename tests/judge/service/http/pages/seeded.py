"""Judgements that are put into a service's database as they are, so that pages can be looked at without a judge."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from gavel.judge.errors import JudgeError
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.admission import KeyStore
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.schemas import KeyScope, Record, ScoreRequest, Verdict
from gavel.judge.service.store.judgement_store import new_id
from gavel.scenarios.judgement import GroupJudgement, Judgement, Vote
from tests.judge.service.in_process import serving

JUDGE = "openai/gpt-5-mini"
ELSEWHERE = "another-machine 1 0"
"""Owner of the lease of a group that nobody judges here."""


@dataclass
class Site:
    """A running service, its client, and what is behind it."""

    client: httpx.AsyncClient
    engine: Engine

    async def key(self, name: str = "a key", **scope: Any) -> str:
        """A new key, which the service knows at once."""
        token, _ = KeyStore(self.engine.database).create(name, KeyScope(**scope))
        await self.engine.admission.refresh()
        return token

    def sign_in(self, token: str) -> None:
        """Like a browser that was given the key."""
        self.client.auth = ("any", token)


@asynccontextmanager
async def site(config: ServiceConfig) -> AsyncIterator[Site]:
    """The service runs within the block."""
    async with serving(config) as client:
        yield Site(client, client._transport.app.state.engine)  # type: ignore[attr-defined]


async def accepted(
    engine: Engine,
    ids: Sequence[str] = ("careful", "hasty"),
    *,
    project: str = "",
    judge: str = JUDGE,
    created_at: float | None = None,
    **options: Any,
) -> Record:
    """A group that another process is judging."""
    trajectories = [{"id": name, "messages": [{"role": "user", "content": "secret words"}]} for name in ids]
    request = ScoreRequest.model_validate({"trajectories": trajectories, **options})
    record = Record(
        id=new_id(),
        project=project,
        key_id="",
        status="queued",
        judge=judge,
        members=len(ids),
        retain=request.retain,
        created_at=time.time() if created_at is None else created_at,
    )
    return (await engine.store.accept(record, request.model_dump_json(exclude_defaults=True).encode(), ELSEWHERE))[0]


async def judged(engine: Engine, members: dict[str, Judgement], group: GroupJudgement, **of_request: Any) -> Record:
    """A finished group."""
    record = await accepted(engine, list(members), **of_request)
    verdict = Verdict(ids=list(members), members=list(members.values()), group=group)
    finished = await engine.store.finish(record, verdict)
    assert finished is not None
    return finished


async def failed(engine: Engine, message: str, remedy: str) -> Record:
    """A group whose judge could not be asked."""
    record = await accepted(engine)
    finished = await engine.store.finish(record, Verdict.failed(["careful", "hasty"], JudgeError(message, remedy)))
    assert finished is not None
    return finished


def scored(score: float, *votes: float, explanation: str = "", **fields: Any) -> Judgement:
    """A member with these votes, in one order after the other."""
    cast = [
        Vote(score=vote, position=order, order=order, model=JUDGE, explanation=explanation)
        for order, vote in enumerate(votes or (score,))
    ]
    return Judgement(score=score, explanation=explanation, votes=cast, **fields)


def whole(status: Any = "scored", **fields: Any) -> GroupJudgement:
    """How a group was judged."""
    costs = {"calls": 2, "prompt_tokens": 4321, "completion_tokens": 234, "cost_usd": 0.00321, "models": [JUDGE]}
    return GroupJudgement(status=status, **{**costs, **fields})
