import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.reply.mentions import Mentions

NAMES = ["W7QX", "B3KD", "W7QXa", "m4"]
PATTERN = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(sorted(NAMES, key=len, reverse=True))})(?![A-Za-z0-9])", re.I)

texts = st.lists(st.sampled_from([*NAMES, *map(str.lower, NAMES), "x", "9", " ", "_", "é", "的", ".", "-", "\n"])).map(
    "".join
)


@given(texts)
def test_names_are_found_where_a_pattern_of_them_finds_them(text):
    mentions = Mentions(NAMES)
    spans = [found.span() for found in PATTERN.finditer(text)]
    assert [found.span() for found in mentions.finditer(text)] == spans
    first = mentions.search(text)
    assert (first.span() if first else None) == next(iter(spans), None)
    assert mentions.subn(" member ", text) == PATTERN.subn(" member ", text)
    assert mentions.sub("", text) == PATTERN.sub("", text)
    assert bool(mentions.fullmatch(text)) == bool(PATTERN.fullmatch(text))


@pytest.mark.parametrize("name", ["", "two words", "é1", "a-b"])
def test_a_name_of_other_characters_is_refused(name):
    with pytest.raises(ValueError, match="letters and digits"):
        Mentions([name])
