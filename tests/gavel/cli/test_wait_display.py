"""Waits with counts: one line at the end when piped, and some between where it takes long."""

import io

from rich.console import Console

from gavel.cli.wait_display import WaitDisplay
from gavel.reports.demo_page import duration


def test_a_piped_wait_is_one_line_with_its_status() -> None:
    text = io.StringIO()
    with WaitDisplay(Console(file=text, width=80)).waiting("openai/x", 3, "episodes", lambda: "0.12 USD") as advance:
        for _ in range(3):
            advance()
    (line,) = text.getvalue().splitlines()
    assert line.startswith("openai/x: 3/3 episodes in ")
    assert line.endswith(" · 0.12 USD")


def test_a_long_wait_tells_how_much_is_left() -> None:
    text = io.StringIO()
    with WaitDisplay(Console(file=text, width=80), every=0).waiting("[b]x", 2, "tasks") as advance:
        advance()
        advance()
    first, last = text.getvalue().splitlines()
    assert first.startswith("[b]x: 1/2 tasks · about ")
    assert first.endswith(" left")
    assert last.startswith("[b]x: 2/2 tasks in ")


def test_the_time_left_is_that_of_whoever_knows_it_better() -> None:
    text = io.StringIO()
    known: list[float | None] = [None, 90.0]
    display = WaitDisplay(Console(file=text, width=80), every=0)
    with display.waiting("training", 3, "steps", left=lambda: known.pop(0)) as advance:
        for _ in range(3):
            advance()
    first, second, _ = text.getvalue().splitlines()
    assert first == "training: 1/3 steps"
    assert second == f"training: 2/3 steps · about {duration(90.0)} left"


def test_a_terminal_shows_a_live_line() -> None:
    text = io.StringIO()
    console = Console(file=text, width=80, force_terminal=True)
    with WaitDisplay(console).waiting("x", 2, "tasks", lambda: "rate limited, 20 s") as advance:
        advance()
    assert "1/2 tasks" in text.getvalue()
    assert "rate limited, 20 s" in text.getvalue()
