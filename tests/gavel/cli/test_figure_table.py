"""Tables of figures at several widths: what is printed holds every figure whole."""

import io

import pytest
from rich.console import Console

from gavel.cli.terminal import print_figures

HEADINGS = ("", "held-out success", "steps to 0.80", "reward's gap to success", "cost, USD", "time")
ROWS = [
    ("judge (openai/gpt-5-mini)", "0.91 ± 0.02", "14 (3 of 5 seeds)", "+0.31", "not known", "1 h 12 min"),
    ("hand", "0.90 ± 0.01", "9", "–", "–", "58 min"),
]


def printed(width: int) -> list[str]:
    text = io.StringIO()
    print_figures(Console(file=text, width=width), HEADINGS, ROWS)
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.mark.parametrize("width", [200, 120, 100, 80, 70, 60, 50, 40, 20, 1])
def test_every_figure_is_whole_on_a_line(width: int) -> None:
    lines = printed(width)
    for row in ROWS:
        for figure in row[1:]:
            assert any(figure in line for line in lines), (figure, lines)
    assert "…" not in "".join(lines)
    if width >= 40:
        assert max(map(len, lines)) <= width


def test_a_wide_terminal_has_a_line_for_each_row_and_a_narrow_one_for_each_figure() -> None:
    assert len(printed(200)) == 3
    assert printed(200)[2].split()[0] == "hand"
    assert 3 < len(printed(80)) < 10
    narrow = printed(40)
    assert narrow[0] == "judge (openai/gpt-5-mini)"
    assert narrow[1] == "  held-out success: 0.91 ± 0.02"
    assert len(narrow) == 12


def test_a_table_without_rows_is_its_headings() -> None:
    text = io.StringIO()
    print_figures(Console(file=text, width=80), ("model", "wins"), [])
    assert text.getvalue().split() == ["model", "wins"]
