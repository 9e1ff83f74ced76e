"""Settings and fixtures of all tests."""

import atexit
import gc
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from pytest_timeout import Settings

from gavel.llm.providers import load_litellm
from tests.endpoint import Endpoint
from tests.forkserver import SETTINGS_FROM_OUTSIDE
from tests.limits import MANY_TESTS, SLOW_TEST_SECONDS

if TYPE_CHECKING:
    from playwright.async_api import Browser  # pyright: ignore[reportMissingImports]

gc.disable()  # until the tests begin: searching for cycles takes half of the time that imports take
atexit.register(gc.freeze)  # nor is anything searched for when the process ends

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # no test fails because it was slow
settings.register_profile("quick", max_examples=15)  # `make check`
settings.register_profile("ci", derandomize=True)  # on a build machine, the same examples every time
if os.environ.get("CI"):
    settings.load_profile("ci")

# A shell without job control starts its background jobs with Ctrl-C ignored, and their children inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """A scripted OpenAI-compatible server on loopback, in a model's place."""
    running = Endpoint()
    yield running
    running.close()


@pytest.fixture
async def browser() -> AsyncIterator["Browser"]:
    """Chromium, by Playwright; skips where one of them is not there."""
    playwright = pytest.importorskip("playwright.async_api", reason="Playwright is not installed: make test-browser")
    chromium = os.environ.get("GAVEL_TEST_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium, or name one: GAVEL_TEST_CHROMIUM")
    async with playwright.async_playwright() as running:
        browser = await running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS_FROM_OUTSIDE:
        monkeypatch.delenv(name, raising=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("thorough") and not os.environ.get("GAVEL_TEST_THOROUGH"):
        pytest.skip("it takes long: `make test-thorough` or `make test-kills` runs it")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Tearing down has a limit of its own: the test's ends where the test fails, and what made it hang may go on."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker else item.config.getini("timeout"))
    limit = Settings(seconds, "signal", func_only=False, disable_debugger_detection=False)
    item.config.hook.pytest_timeout_set_timer(item=item, settings=limit)


_SLOW_FILE = re.compile(r"^pytestmark = (pytest\.mark\.slow|\[.*\bpytest\.mark\.slow\b.*\])$", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m 'not slow and …'`, files of slow tests are not imported: some import frameworks that take seconds."""
    marks = str(config.getoption("markexpr"))
    if not marks.startswith("not slow") or " or " in marks or not collection_path.match("test_*.py"):
        return None
    return bool(_SLOW_FILE.search(collection_path.read_text())) or None


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported is not searched for cycles again, nor is LiteLLM, which many tests would import."""
    if len(session.items) > MANY_TESTS:
        load_litellm()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, the trainer's before others: what takes longest does not end the run."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TEST_SECONDS))
    items.sort(key=lambda item: (item.path not in slow, "trainer" not in item.path.parts))
