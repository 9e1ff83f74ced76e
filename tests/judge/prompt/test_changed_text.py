import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.prompt.changed_text import MIN_CHANGED_CHARACTERS, Blocks, Change, apply_change, read_name

LINES = [f"line {number} of a file that is read" for number in range(40)]
FILE = "\n".join(LINES) + "\n"


def edited(*lines: str, at: slice) -> str:
    changed = list(LINES)
    changed[at] = lines
    return "\n".join(changed) + "\n"


CASES = {
    "a line is another": (edited("other", at=slice(11, 12)), Change(3, 11, 1, LINES[11], "other")),
    "two become three": (edited("a", "b", "c", at=slice(4, 6)), Change(3, 4, 2, "\n".join(LINES[4:6]), "a\nb\nc")),
    "a line is new": (edited("new", at=slice(20, 20)), Change(3, 20, 0, None, "new")),
    "an empty line is new": (edited("", at=slice(20, 20)), Change(3, 20, 0, None, "")),
    "a line is gone": (edited(at=slice(7, 8)), Change(3, 7, 1, LINES[7], None)),
    "the first line": (edited("first", at=slice(0, 1)), Change(3, 0, 1, LINES[0], "first")),
    "the last line": (edited("last", at=slice(39, 40)), Change(3, 39, 1, LINES[39] + "\n", "last\n")),
    "more at the end": (FILE + "more", Change(3, 40, 0, None, "more")),
    "the end is gone": (FILE[: -len(LINES[39]) - 1], Change(3, 39, 1, LINES[39] + "\n", None)),
    "no line break at the end": (FILE[:-1], Change(3, 39, 1, LINES[39] + "\n", LINES[39])),
}


@pytest.mark.parametrize("case", CASES)
def test_a_text_like_a_block_is_told_by_its_change(case):
    text, expected = CASES[case]
    assert Blocks({FILE: 3}).find_change(text) == expected
    assert apply_change(FILE, expected.kept, expected.count, expected.new) == text


def test_the_nearest_block_is_taken():
    text = edited("other", at=slice(11, 12))
    blocks = {edited("x", "y", "z", at=slice(10, 20)): 1, FILE: 2, edited("w", at=slice(30, 40)): 3}
    assert (Blocks(blocks).find_change(text) or Change(0, 0, 0, None, None)).block == 2


@pytest.mark.parametrize(
    "text",
    ["short", FILE[: MIN_CHANGED_CHARACTERS - 1], "quite another text\n" * 60, edited(*["new"] * 40, at=slice(5, 36))],
    ids=["short", "a little short", "another", "mostly another"],
)
def test_other_texts_are_no_change_of_a_block(text):
    assert Blocks({FILE: 3}).find_change(text) is None


@pytest.mark.parametrize("name", ["3", "3 but for lines 4", "3 but for lines 4-5 x", "but for lines 4-5", ""])
def test_other_names_are_no_name_of_a_change(name):
    assert read_name(name) is None


lines = st.lists(st.sampled_from(["", "a", "bb", "the same line " * 8, "another line " * 9]), max_size=14)
endings = st.sampled_from(["", "\n", "\n\n", "x"])


@given(lines, lines, lines, lines, endings, endings)
def test_block_and_change_make_the_text(before, old, new, after, end, other_end):
    block = "\n".join([*before, *old, *after]) + end
    text = "\n".join([*before, *new, *after]) + other_end
    change = Blocks({block: 7}).find_change(text)
    if change is not None:
        assert read_name(change.name) == ("7", change.kept, change.count)
        assert apply_change(block, change.kept, change.count, change.new) == text
