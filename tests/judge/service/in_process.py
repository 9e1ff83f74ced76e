"""The service's application in the test's own event loop, asked through ASGI; its judges ask an `Endpoint`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.admission import KeyStore
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.http.app import create_app
from gavel.judge.service.schemas import KeyScope
from gavel.judge.service.store.database import Database
from tests.endpoint import Endpoint

MODEL = "openai/gpt-5-mini"


def config_of(folder: Path, endpoint: Endpoint, judge: dict[str, Any] | None = None, **settings: Any) -> ServiceConfig:
    """A service whose judge is the endpoint, with its database in the folder."""
    asked = JudgeConfig(**{"models": MODEL, "params": endpoint.params, "orders": 2, **(judge or {})})
    return ServiceConfig(**{"database": str(folder / "service.sqlite"), "judge": asked, **settings})


@asynccontextmanager
async def serving(config: ServiceConfig) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service, which runs within the block."""
    app = create_app(config)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client,
    ):
        yield client


@asynccontextmanager
async def running(config: ServiceConfig) -> AsyncIterator[Engine]:
    """An engine without HTTP."""
    with closing(Database.open(config.database)) as database:
        engine = Engine(config, database)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()


def make_key(config: ServiceConfig, **scope: Any) -> tuple[str, str]:
    """The token of a new key, and its id."""
    with closing(Database.open(config.database)) as database:
        token, key = KeyStore(database).create("a test", KeyScope(**scope))
        return token, key.id


def key_of(config: ServiceConfig, **scope: Any) -> dict[str, str]:
    """The header of a new key."""
    return {"Authorization": f"Bearer {make_key(config, **scope)[0]}"}


def group(*answers: str, **options: Any) -> dict[str, Any]:
    """The body of a request: one member for each answer."""
    return {"trajectories": [{"messages": messages(answer)} for answer in answers], **options}


def messages(answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Why is the sky blue?"}, {"role": "assistant", "content": answer}]


def kind(answer: httpx.Response) -> str:
    """The kind of a problem; empty for any other answer."""
    return answer.json().get("type", "").rpartition(":")[2]


def outcome(answer: httpx.Response) -> tuple[int, str]:
    """The status and the kind."""
    return answer.status_code, kind(answer)
