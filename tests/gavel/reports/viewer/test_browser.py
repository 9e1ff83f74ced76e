"""The viewer in a real browser: hostile text runs nothing, and pages work narrow and wide, dark, by keyboard, live."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gavel.reports.comparison import compare_cells, read_cell, write_comparison
from gavel.reports.run_page import write_run_report
from gavel.reports.viewer.app import create_app
from gavel.reports.viewer.index import Index
from gavel.trainer.runs.run_listing import read_runs
from tests.backend_server import serving
from tests.gavel.reports.made import HOSTILE, RUN, group, made_run, member, run_directory, store
from tests.limits import HANG_SECONDS

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page  # pyright: ignore[reportMissingImports]

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MILLISECONDS = 120_000
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1400, "height": 900}
GROUP = f"/group/{RUN}/trajectories/train/000003.jsonl.zst/0"
PAGES = ["/", f"/run/{RUN}", "/groups", GROUP, f"/annotate{GROUP.removeprefix('/group')}"]

LOST_CELLS = """
[...document.querySelectorAll("th, td")].filter((cell) => {
  const box = cell.getBoundingClientRect();
  const scrolls = (each) => each && (getComputedStyle(each).overflowX === "auto" || scrolls(each.parentElement));
  return !box.width || (box.right > document.documentElement.clientWidth + 1 && !scrolls(cell));
}).map((cell) => cell.outerHTML)
"""
"""Cells that are not drawn, or that stand beyond the screen where nothing scrolls to them."""


@pytest.fixture
def served(tmp_path: Path):
    root = tmp_path / "runs"
    run_directory(root)
    hostile = [member(f"{HOSTILE} {'x' * 400} {n}", n / 8, flags=(HOSTILE,), task=f"<b>{n}") for n in range(8)]
    for each in hostile:
        assert each.judgement is not None
        each.judgement.explanation = HOSTILE
    store(root, 3).append(group(*hostile))
    index = Index(root, tmp_path / "index.sqlite")
    index.update()
    with serving(create_app(index, lambda: read_runs(root))) as url:
        yield url, index, root


async def opened(browser: "Browser", **options: Any) -> tuple["Page", list[str]]:
    """A page, and what went wrong on it: scripts' errors, refused resources, dialogs."""
    page = await browser.new_page(**options)
    page.set_default_timeout(MILLISECONDS)
    wrong: list[str] = []

    async def dismissed(dialog: Any) -> None:
        wrong.append(f"dialog {dialog.message}")
        await dialog.dismiss()

    page.on("dialog", dismissed)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    return page, wrong


@pytest.mark.parametrize(
    "options",
    [
        {"viewport": DESKTOP},
        {"viewport": PHONE, "color_scheme": "dark", "reduced_motion": "reduce"},
        {"viewport": PHONE, "java_script_enabled": False},
    ],
    ids=["desktop", "phone-dark", "no-scripts"],
)
async def test_every_page_shows_hostile_text_as_text_and_does_not_widen_the_screen(browser, served, options):
    url, _, _ = served
    page, wrong = await opened(browser, **options)
    for address in PAGES:
        answer = await page.goto(url + address)
        assert answer is not None
        assert answer.status == 200, address
        if options.get("java_script_enabled", True):
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= options["viewport"]["width"], address
    await page.goto(url + GROUP)
    assert HOSTILE in await page.inner_text("main")
    assert await page.locator("main img, main script").count() == 0
    assert wrong == []


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_no_table_of_a_report_loses_a_column(browser, tmp_path, viewport):
    runs = [made_run(tmp_path / name) for name in ("judge", "hand")]
    cells = [read_cell(f"{run.name} {'x' * 40}", 0, run, None) for run in runs]
    compared = compare_cells(cells, "desk", tmp_path / "compared", margin=0.03, threshold=0.8)
    page, wrong = await opened(browser, viewport=viewport)
    for path in (write_run_report(runs[0]), write_comparison(compared)):
        await page.goto(path.as_uri())
        await page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        assert await page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert await page.evaluate(LOST_CELLS) == []
    assert wrong == []


async def test_keys_move_between_rounds_and_steps_and_open_what_is_folded(browser, served):
    url, _, _ = served
    page, wrong = await opened(browser, viewport={"width": 1400, "height": 300})
    await page.goto(f"{url}/group/{RUN}/trajectories/train/000001.jsonl.zst/0")
    await page.keyboard.press("o")
    assert await page.locator("main details:not([open])").count() == 0
    before = await page.evaluate("scrollY")
    await page.keyboard.press("j")
    deadline = time.monotonic() + HANG_SECONDS
    while await page.evaluate("scrollY") <= before:  # it scrolls smoothly
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await page.keyboard.press("n")
    await page.wait_for_url("**/000002.jsonl.zst/0")
    await page.keyboard.press("p")
    await page.wait_for_url("**/000001.jsonl.zst/0")
    await page.keyboard.press("/")
    await page.keyboard.type("mended")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/groups?q=mended")
    assert "2 groups" in await page.inner_text("#count")
    assert wrong == []


async def test_a_list_shows_what_a_run_adds_while_it_is_open(browser, served):
    url, index, root = served
    page, wrong = await opened(browser, viewport=DESKTOP)
    await page.goto(f"{url}/groups")
    assert "5 groups" in await page.inner_text("#count")
    store(root, 4).append(group(member("later", 0.5, task="a later task")))
    index.update()
    await page.locator("#count", has_text="6 groups").wait_for()
    assert "a later task" in await page.inner_text("#groups-table")
    assert wrong == []
