"""Guess a word of five letters in six tries: each guess is answered with marks for its letters.

The words are everyday English ones; those that are held out are never trained on.
"""

import random
import re

from gavel.prompts import render
from gavel.scenarios.library.guess_word.words import WORDS, marks_of
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

_GUESSES, _MAX_TURNS = 6, 9
_WORD = re.compile(r"[\"'*`]*([a-z]{5})[\"'*`]*[.!]?")


class HiddenWord:
    """One word, and how often it was guessed."""

    async def reset(self, task: Task) -> None:
        self._word = str(task.data["word"])
        self._guesses: list[str] = []

    async def observe(self, action: str) -> object:
        found = _WORD.fullmatch(action.strip().casefold())
        if found is None:
            return "Say one word of five letters from a to z, and nothing else."
        guess = found[1]
        if guess in self._guesses:
            return f"You have guessed {guess} already."
        self._guesses.append(guess)
        if guess == self._word:
            return done("That is the word.")
        marks = " ".join(f"{letter}{mark}" for letter, mark in zip(guess, marks_of(guess, self._word), strict=True))
        left = _GUESSES - len(self._guesses)
        if left == 0:
            return done(f"{marks}\nYou have no guess left.")
        return f"{marks}\n{left} {'guess' if left == 1 else 'guesses'} left."

    def success(self, trajectory: Trajectory) -> bool:
        return self._guesses[-1:] == [self._word]

    def reward(self, trajectory: Trajectory) -> float:
        """What somebody might write by hand: fewer guesses are better; a little for letters in their places."""
        if self._guesses[-1:] == [self._word]:
            return 1 - 0.1 * (len(self._guesses) - 1)
        places = [marks_of(guess, self._word).count("+") for guess in self._guesses]
        return 0.05 * max(places, default=0)


def _tasks(*, held_out: bool) -> list[Task]:
    shuffled = random.Random("guess word").sample(WORDS, len(WORDS))
    fifth = len(shuffled) // 5
    chosen = shuffled[:fifth] if held_out else shuffled[fifth:]
    numbers = {word: number for number, word in enumerate(WORDS)}
    words = "I think of a word of five letters. What is your first guess?"
    return [
        Task(id=f"word-{numbers[word]}", user=words, data={"word": word}, reference=f"The word is {word}.")
        for word in chosen
    ]


scenario = Scenario(
    name="guess_word",
    system=render("scenarios/guess_word_system.j2").strip(),
    environment=HiddenWord,
    tasks=_tasks(held_out=False),
    held_out=_tasks(held_out=True),
    max_turns=_MAX_TURNS,
    rubric=render("scenarios/guess_word_rubric.j2").strip(),
)
