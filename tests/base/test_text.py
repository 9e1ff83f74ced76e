import pytest

from gavel.base.text import counted


@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [
        (1, "group", "1 group"),
        (0, "group", "0 groups"),
        (1600, "call", "1,600 calls"),
        (1, "reply", "1 reply"),
        (2, "reply", "2 replies"),
        (2, "trajectory", "2 trajectories"),
        (2, "day", "2 days"),
    ],
)
def test_what_is_counted_has_its_number(number: int, noun: str, words: str) -> None:
    assert counted(number, noun) == words
