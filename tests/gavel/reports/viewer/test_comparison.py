from hypothesis import given
from hypothesis import strategies as st

from gavel.reports.viewer.group_view import compared, differing
from tests.gavel.reports.viewer.stored import member

texts = st.text(alphabet="ab \n.ü", max_size=60)


@given(texts, texts)
def test_the_pieces_are_the_texts_and_what_is_not_marked_is_common(left, right):
    one, other = differing(left, right)
    assert "".join(text for text, _ in one) == left
    assert "".join(text for text, _ in other) == right
    assert [text for text, own in one if not own] == [text for text, own in other if not own]


@given(texts)
def test_the_same_text_has_no_mark(text):
    assert not any(own for side in differing(text, text) for _, own in side)


def test_texts_too_long_to_compare_are_marked_as_a_whole():
    long = "word " * 5000
    assert differing(long, long + "x") == ([(long, True)], [(long + "x", True)])
    assert differing(long, long) == ([(long, False)], [(long, False)])


def test_turns_are_paired_and_the_longer_side_goes_on():
    left, right = member("Mended it.", 0.5), member("Mended them.", 0.5)
    right.messages_and_choices.append({"role": "user", "content": "Thanks."})
    pairs = compared(left, right)
    assert [pair.same for pair in pairs] == [True, True, True, True, False, False]
    assert pairs[4].left is not None
    assert pairs[4].right is not None
    assert [text for text, own in pairs[4].right[1] if own] == ["them"]
    assert pairs[5].left is None
