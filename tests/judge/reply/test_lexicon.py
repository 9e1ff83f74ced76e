import re
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.reply.comparisons import OTHERS
from gavel.judge.reply.explanations import _SECOND_THOUGHTS
from gavel.judge.reply.lexicon import entries, language, levels, pattern, understood


@pytest.mark.parametrize(
    ("concept", "text"),
    [
        ("best", "the Strongest one"),
        ("best", "W3RT 最好"),
        ("worst", "am schlechtesten"),
        ("worst", "худшая"),
        ("unmeant", "Beispielausgabe"),
        ("unmeant", "形式の例です。"),
        ("rereads", "On closer inspection it did not"),
        ("equal", "equally-good"),
    ],
)
def test_a_word_is_found_in_any_language(concept, text):
    assert pattern(concept).search(text)


@pytest.mark.parametrize(
    ("concept", "text"), [("best", "bestow"), ("best", "topping"), ("unmeant", "sampled"), ("not", "knot")]
)
def test_a_part_of_another_word_is_none(concept, text):
    assert not pattern(concept).search(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Begründung: alles geprüft, nichts vergessen", "de"),
        ("K7QX est le meilleur, B9FD le moins bon.", "fr"),
        ("K7QX lo verificó todo", "es"),
        ("K7QX проверил всё", "ru"),
        ("K7QX 先查询再退款", "zh"),
        ("K7QX が最も良い", "ja"),
        ("Zorp glarb", None),
    ],
)
def test_the_language_of_a_text_is_told_by_its_script_or_its_function_words(text, code):
    assert language(text) == code


def test_the_levels_and_what_may_be_said_of_scores_do_not_overlap_in_meaning():
    assert (levels()["flawless"], levels()["useless"]) == (2, -2)
    assert not {"example", "draft", "cost", "penalty", "dummy", "not"} & understood()


def test_a_long_text_is_searched():
    """Within the limit of every test: with time in proportion to the square of the length it would take hours."""
    phrases = pattern("unmeant", "meaning", "revises")
    assert not phrases.search("K7QX looked it up and refunded 14.20 within policy. " * 100_000)


CONCEPTS = ("best", "worst", "better", "deserves", "not", "wins", "attempt", "good", "unmeant")
PIECES = [
    *[word.replace("*", "ly") for concept in CONCEPTS for word in [*entries(concept)][:25]],
    *["-", "_", ".", "e", "S", "ſ", "K", "ı", "é", "最"],
    *(" ", " ", ", ", "\n", "\x1c", "\x1f", "than both others"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.sampled_from(CONCEPTS), st.booleans())
def test_words_are_found_in_plain_text_as_in_any_other(text, concept, upper):
    text = text.upper() if upper else text
    for words in (pattern(concept), pattern("awful", "poor", "fair", "good", "superb"), OTHERS, _SECOND_THOUGHTS):
        whole = re.compile(words.source(plain=False), re.IGNORECASE)
        assert [found.span() for found in words.finditer(text)] == [found.span() for found in whole.finditer(text)]
        for way in ("search", "match", "fullmatch"):
            found, expected = getattr(words, way)(text), getattr(whole, way)(text)
            assert (found and found.span()) == (expected and expected.span())
        assert words.sub("#", text) == whole.sub("#", text)


def test_no_word_has_a_letter_that_stands_for_a_plain_one_without_regard_to_case():
    every = (files("gavel.judge.reply") / "words.toml").read_text(encoding="utf-8")
    assert not set(every) & set("\u017f\u212a\u0131")
