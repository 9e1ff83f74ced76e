from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.library.guess_word import WORDS, marks_of, scenario
from gavel.scenarios.rollout import rollout
from gavel.scenarios.trajectory import Trajectory


@pytest.mark.parametrize(
    ("guess", "word", "marks"),
    [
        ("crane", "crane", "+++++"),
        ("speed", "erase", "?-??-"),
        ("steal", "least", "?????"),
        ("allow", "loyal", "????-"),
        ("eerie", "where", "?-?-+"),
        ("sleep", "speed", "+-++?"),
        ("aaaaa", "banal", "-+-+-"),
    ],
)
def test_a_letter_is_marked_as_often_as_the_word_has_it(guess: str, word: str, marks: str):
    assert marks_of(guess, word) == marks


five = st.text("abcde", min_size=5, max_size=5)


@given(five, five)
def test_marks_agree_with_the_letters_of_both_words(guess: str, word: str):
    marks = marks_of(guess, word)
    for letter in set(guess):
        marked = sum(mark != "-" for mark, each in zip(marks, guess, strict=True) if each == letter)
        assert marked == min(guess.count(letter), word.count(letter))
    assert [mark == "+" for mark in marks] == [a == b for a, b in zip(guess, word, strict=True)]


def test_the_words_are_different_and_of_five_letters():
    assert len(set(WORDS)) == len(WORDS) > 500
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in WORDS)
    words = [task.data["word"] for split in ("train", "held_out") for task in scenario.tasks(split)]
    assert sorted(map(str, words)) == sorted(WORDS)


async def said_in_turn(*words: str) -> Trajectory:
    turns = iter(words)

    async def reply(request: ChatRequest) -> Message:
        return {"content": next(turns, "")}

    return await rollout(FunctionModel("words", reply), scenario, scenario.tasks()[0])


async def test_what_is_no_guess_costs_a_turn_and_no_guess():
    word = str(scenario.tasks()[0].data["word"])
    episode: Any = await said_in_turn("I guess crane", "cr4ne", "zzzzz", "zzzzz", f'"{word.upper()}".')
    answers = [message["content"] for message in episode.messages() if message["role"] == "user"][1:]
    assert [answer.partition("\n")[2] for answer in answers] == ["", "", "5 guesses left.", "", ""]
    assert answers[0] == answers[1] == "Say one word of five letters from a to z, and nothing else."
    assert answers[2].startswith("z- z- z- z- z-")
    assert answers[3] == "You have guessed zzzzz already."
    assert (episode.metrics["success"], episode.metrics["environment_reward"]) == (1, 0.9)


async def test_a_reply_of_several_words_is_no_guess_even_if_the_right_one_is_among_them():
    word = str(scenario.tasks()[0].data["word"])
    episode = await said_in_turn(*[f"{word} {other}" for other in WORDS[:9]])
    assert (episode.status, episode.metrics["success"]) == ("truncated", 0)


async def test_after_six_guesses_the_game_is_over():
    word = scenario.tasks()[0].data["word"]
    episode = await said_in_turn(*[other for other in WORDS if other != word][:6], str(word))
    assert (episode.status, episode.metrics["turns"], episode.metrics["success"]) == ("finished", 6, 0)
