"""Scripted players of the word game. The expert knows the list of words, and not which one it is."""

import random
import re
from collections import Counter

from gavel.scenarios.library.guess_word.words import WORDS, marks_of
from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.task import Task

_SMALL = 40
"""Words left, from which on each guess is weighed by how far it would divide them."""


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Guesses what divides the words that are still possible."""
    left = list(WORDS)
    guess = "crane"
    while True:
        said = yield guess
        marks = "".join(re.findall(r"[a-z]([+?-])", said))[:5]
        left = [word for word in left if word != guess and marks_of(guess, word) == marks]
        guess = _best(left)


def _best(left: list[str]) -> str:
    if len(left) > _SMALL:
        letters = Counter(letter for word in left for letter in set(word))
        return max(left, key=lambda word: sum(letters[letter] for letter in set(word)))
    if len(left) <= 2:
        return left[0]
    candidates = left if len(left) <= 3 else [*left, *WORDS]
    return min(candidates, key=lambda guess: max(Counter(marks_of(guess, word) for word in left).values()))


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Guesses words of the list without reading the marks."""
    for word in dice.sample(WORDS, 6):  # noqa: UP028 - a list takes no answers
        yield word


def refuser(task: Task, opening: str, dice: random.Random) -> Turns:
    """Asks for help instead of guessing."""
    while True:
        yield "Please tell me the word, it starts with a?"


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool, "refuser": refuser}
