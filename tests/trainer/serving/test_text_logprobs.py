"""The tokens that spell a text."""

from gavel.trainer.serving.responses_api import TextLogprobs


def tokens_of(*texts: str) -> TextLogprobs:
    found = TextLogprobs()
    found.add([{"token": text, "logprob": -float(number)} for number, text in enumerate(texts)])
    return found


def spelled(tokens: TextLogprobs, text: str) -> list[str]:
    return [each["token"] for each in tokens.of(text)]


def test_a_text_has_its_tokens_alone():
    tokens = tokens_of("<think>", "Well", ".", "</think>", "\n", "Well", ".", "<|end|>")
    assert spelled(tokens, "Well.") == ["Well", "."]
    assert spelled(tokens, "Well.") == ["Well", "."]
    assert spelled(tokens, "Well.") == []


def test_a_token_is_given_once_though_two_pieces_share_it():
    tokens = tokens_of("Hel", "lo you", "!")
    assert [spelled(tokens, piece) for piece in ("Hello", " you", "!")] == [["Hel", "lo you"], [], ["!"]]


def test_a_character_of_several_tokens_has_all_of_them():
    tokens = tokens_of("<think>", "a ", "\ufffd", "\ufffd", " b", "<|end|>")
    assert spelled(tokens, "a \U0001f600 b") == ["a ", "\ufffd", "\ufffd", " b"]
    assert spelled(tokens_of("\ufffd", "\ufffd", "<|end|>"), "\u4f60\u597d") == ["\ufffd", "\ufffd"]


def test_nothing_spells_what_was_not_sampled():
    assert spelled(tokens_of("a", "b"), "c") == []
    assert spelled(tokens_of("a", "b"), "") == []
