"""Waits with counts: one line at the end when piped, and some between where it takes long."""

import io

from rich.console import Console

from gavel.cli.wait_display import WaitDisplay


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


def test_a_terminal_shows_a_live_line() -> None:
    text = io.StringIO()
    console = Console(file=text, width=80, force_terminal=True)
    with WaitDisplay(console).waiting("x", 2, "tasks", lambda: "rate limited, 20 s") as advance:
        advance()
    assert "1/2 tasks" in text.getvalue()
    assert "rate limited, 20 s" in text.getvalue()
