"""The pages in a real browser: live with scripts, whole without, narrow and wide, light and dark, by keyboard."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn

from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.engine.admission import KeyStore
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.http.app import create_app
from gavel.judge.service.schemas import KeyScope, Verdict
from gavel.scenarios.judgement import Judgement
from tests.endpoint import Answer, Endpoint, Request, labels_in, says
from tests.judge.service.http.pages.hostile import MARKUP
from tests.judge.service.http.pages.seeded import accepted, judged, scored, whole
from tests.judge.service.in_process import config_of, group
from tests.limits import HANG_SECONDS

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Page  # pyright: ignore[reportMissingImports]

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MILLISECONDS = 120_000
"""After which a page that does not show what it should has failed."""
DESKTOP = {"width": 1200, "height": 800}


class Served:
    """A service on loopback, and what is behind it."""

    def __init__(self, engine: Engine, port: int) -> None:
        self.engine = engine
        self.url = f"http://127.0.0.1:{port}"

    async def key(self, **scope: Any) -> str:
        token, _ = KeyStore(self.engine.database).create("a key", KeyScope(**scope))
        await self.engine.admission.refresh()
        return token


@asynccontextmanager
async def served(config: ServiceConfig) -> AsyncIterator[Served]:
    app = create_app(config)
    async with app.router.lifespan_context(app):
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield Served(app.state.engine, listener.getsockname()[1])
        finally:
            server.should_exit = True
            await serving


@pytest.fixture
async def service(browser: "Browser", tmp_path: Path, endpoint: Endpoint) -> AsyncIterator[Served]:
    async with served(config_of(tmp_path, endpoint)) as running:
        yield running


def _is_error(message: "ConsoleMessage") -> bool:
    """Whether the browser reports an error, other than a page that says that something is not there."""
    return message.type == "error" and "responded with a status of 4" not in message.text


@asynccontextmanager
async def opened(browser: "Browser", url: str, **options: Any) -> "AsyncIterator[Page]":
    """A page of a new browser; it must not report an error, nor be wider than its window."""
    errors: list[str] = []
    context = await browser.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(MILLISECONDS)
    page = await context.new_page()
    page.on("console", lambda message: errors.append(message.text) if _is_error(message) else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    await page.goto(url)
    yield page
    if options.get("java_script_enabled", True):
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert errors == []
    await context.close()


async def test_votes_and_scores_come_without_a_reload(tmp_path: Path, endpoint: Endpoint, browser: "Browser"):
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()
    asked: list[Request] = []

    def step(request: Request) -> Answer:
        asked.append(request)
        if len(asked) > 1:
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(HANG_SECONDS)
        entries = [{"trajectory_id": name, "explanation": "so", "score": 0.61} for name in labels_in(request)]
        return says(json.dumps({"scores": entries}))

    endpoint.script = [step]
    async with served(config_of(tmp_path, endpoint)) as service, opened(browser, service.url) as page:
        await page.evaluate("window.mark = 'not reloaded'")
        async with httpx.AsyncClient(base_url=service.url) as client:
            await client.post("/v1/score?wait=false", json=group("a", "b"))
        await page.locator("#judgements a").first.click()  # appears by itself
        await page.get_by_text("1 of 2 ballots are in").wait_for()
        await page.evaluate("window.mark = 'not reloaded'")
        votes = await page.locator(".cast li:not(.none)").all_inner_texts()
        assert sorted(" ".join(vote.split()) for vote in votes) == ["0.61 position #1", "0.61 position #2"]
        assert await page.title() == "running · 2 members · Gavel"
        go_on.set()
        await page.locator("#status .scored").wait_for()
        assert await page.locator(".value b").all_inner_texts() == ["0.61", "0.61"]
        assert await page.get_by_role("button", name="Pause updates").count() == 0
        assert await page.evaluate("window.mark") == "not reloaded"


async def test_nothing_of_what_is_shown_runs(service: Served, browser: "Browser"):
    members = {MARKUP: scored(0.5, explanation=MARKUP), "b": Judgement(reason=MARKUP)}
    record = await judged(service.engine, members, whole("partial", reason=MARKUP), rubric=MARKUP, judge=MARKUP)
    pending = await accepted(service.engine, (MARKUP, "b"))
    dialogs: list[str] = []
    for path in ("/", f"/judgements/{record.id}", f"/judgements/{pending.id}"):
        async with opened(browser, service.url) as page:
            page.on("dialog", lambda dialog: dialogs.append(dialog.message))
            await page.goto(service.url + path)
            await page.wait_for_timeout(1500)  # a live page has loaded itself once more
            assert await page.locator("img").count() == 0
    assert dialogs == []


async def test_a_live_page_sends_the_key_that_the_browser_was_given(service: Served, browser: "Browser"):
    record = await accepted(service.engine, ("a", "b"), project="desk")
    credentials = {"username": "any", "password": await service.key(projects=["desk"])}
    place = f"{service.url}/judgements/{record.id}"
    async with opened(browser, place, http_credentials=credentials) as page:
        await page.evaluate("window.mark = 'not reloaded'")
        verdict = Verdict(ids=["a", "b"], members=[scored(0.5), scored(0.1)], group=whole())
        await service.engine.store.finish(record, verdict)
        await page.locator("#status .scored").wait_for()
        assert await page.evaluate("window.mark") == "not reloaded"
    with pytest.raises(Exception, match="AUTH_CREDENTIALS"):  # there is nobody whom this browser could ask
        async with opened(browser, place):
            pass
