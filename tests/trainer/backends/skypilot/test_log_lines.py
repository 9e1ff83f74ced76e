"""Logs come as lines without colours."""

from gavel.trainer.backends.skypilot.sky_host import LineWriter


def test_lines_are_told_whole_and_plain() -> None:
    lines: list[str] = []
    with LineWriter(lines.append) as out:
        print("\x1b[32mone", file=out, end="")
        print(" and more\x1b[0m\n\n", file=out)
        print("2 %\r3 %\nlast", file=out, end="")
    assert lines == ["one and more", "2 %", "3 %", "last"]
