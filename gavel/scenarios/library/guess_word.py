"""Guess a word of five letters in six tries: each guess is answered with marks for its letters.

The words are everyday English ones; those that are held out are never trained on.
"""

import random
import re
from collections import Counter
from collections.abc import Sequence

from gavel.scenarios.library._shared import playing, repeating, shipped
from gavel.scenarios.scripted_agent import Player, Turns
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

_GUESSES = 6
WORDS: Sequence[str] = """
about above actor admit adult after again agent agree ahead alarm album alert alike alive allow alone along alter among
angel anger angle angry apart apple apply arena argue arise armor arrow aside asset audio avoid awake award aware badly
baker basic basin batch beach beard beast begin being belly below bench berry birth black blade blame blank blast blend
bless blind block blood bloom board boast bonus boost booth bound brain brake brand brave bread break breed brick bride
brief bring broad brook broom brown brush build bunch burst cabin cable camel candy canoe cargo carry carve catch cause
cedar chain chair chalk charm chart chase cheap check cheek cheer chess chest chief child chill choir chord civil claim
clash class clean clear clerk click cliff climb clock close cloth cloud coach coast coral couch count court cover crack
craft crane crash cream creek crime crisp cross crowd crown crude curve cycle daily dairy dance dealt decay delay dense
depth diary dirty ditch dizzy donor doubt dozen draft drain drama dream dress drift drill drink drive eager eagle early
earth eight elbow elder elect empty enemy enjoy enter entry equal error essay event every exact exist extra faint fairy
faith false fancy fault favor feast fence fever fiber field fifth fight final first flame flash fleet flesh float flock
flood floor flour fluid flute focus force forge forty found frame fresh front frost fruit funny ghost giant glass globe
glory glove grace grade grain grand grant grape graph grass grave great green greet grief group grove guard guess guest
guide habit happy harsh heart heavy hedge hello hobby honey honor horse hotel house human humor hurry image index inner
input issue ivory jewel joint judge juice kneel knife knock label labor large laser later laugh layer learn lemon level
light limit linen liver local logic loose lower loyal lucky lunch magic major maple march marsh match maybe mayor medal
melon mercy merge merit metal meter midst minor mixed model money month moral motor mount mouse mouth movie music nerve
never night noble noise north novel nurse ocean offer olive onion opera orbit order organ other outer owner paint panel
panic paper party paste patch pause peace peach pearl pedal penny phase phone photo piano piece pilot pitch place plain
plane plant plate plaza point polar porch pound power press price pride prime print prize proof proud pulse pupil queen
quest quick quiet quilt quite radar radio raise ranch range rapid ratio reach ready realm rebel refer reply rider ridge
rifle right rigid rival river roast robin rocky rough round route royal rural salad salty sauce scale scarf scene scent
score scout scrap seize sense serve seven shade shake shape share sharp sheep sheet shelf shell shift shine shirt shock
shore short shout sight silly since skill skirt slate sleep slice slide slope small smart smell smile smoke snake solar
solid solve sorry sound south space spare spark speak spear speed spell spend spice spike spoon sport spray squad stack
staff stage stain stair stamp stand start state steam steel steep stern stick stiff still stock stone stool storm story
stove straw strip study stuff style sugar sunny super surge sweet swift swing sword table taste teach thank theme thick
thing think third thorn those three throw thumb tiger tight timer title toast today token tooth topic torch total touch
tough tower trace track trade trail train trait treat trend trial tribe trick truck trunk trust truth twice twist uncle
under union unity upper urban usual vague valid value vapor vault venue verse video visit vital vivid vocal voice wagon
waste watch water whale wheat wheel where which while white whole width woman world worry worth wound wrist write wrong
yacht yield young youth
""".split()  # noqa: SIM905


def marks_of(guess: str, word: str) -> str:
    """One mark per letter of the guess: `+` right, `?` elsewhere in the word, `-` absent, or not once more.

    A letter is marked as often as the word contains it, right positions first: `speed` for `erase` is `?-??-`.
    """
    left = [letter for letter, other in zip(word, guess, strict=True) if letter != other]
    marks = ""
    for letter, wanted in zip(guess, word, strict=True):
        is_elsewhere = letter != wanted and letter in left
        if is_elsewhere:
            left.remove(letter)
        marks += "+" if letter == wanted else "?" if is_elsewhere else "-"
    return marks


class HiddenWord:
    """One word, and the guesses at it."""

    async def reset(self, task: Task) -> None:
        self._word = str(task.data["word"])
        self._guesses: list[str] = []

    async def observe(self, action: str) -> object:
        found = re.fullmatch(r"[\"'*`]*([a-z]{5})[\"'*`]*[.!]?", action.strip().casefold())
        if found is None:
            return "Say one word of five letters from a to z, and nothing else."
        guess = found[1]
        if guess in self._guesses:
            return f"You have guessed {guess} already."
        self._guesses.append(guess)
        if guess == self._word:
            return done("That is the word.")
        marks = " ".join(map("".join, zip(guess, marks_of(guess, self._word), strict=True)))
        left = _GUESSES - len(self._guesses)
        if left == 0:
            return done(f"{marks}\nYou have no guess left.")
        return f"{marks}\n{left} {'guess' if left == 1 else 'guesses'} left."

    def success(self, trajectory: Trajectory) -> bool:
        return self._guesses[-1:] == [self._word]

    def reward(self, trajectory: Trajectory) -> float:
        """A naive hand-written reward: fewer guesses are better; a little for letters in their places."""
        if self.success(trajectory):
            return 1 - 0.1 * (len(self._guesses) - 1)
        return 0.05 * max((marks_of(guess, self._word).count("+") for guess in self._guesses), default=0)


def _task(word: str) -> Task:
    words = "I think of a word of five letters. What is your first guess?"
    name, secret = f"word-{WORDS.index(word)}", f"The word is {word}."
    return Task(id=name, user=words, data={"word": word}, reference=secret)


_TASKS = [_task(word) for word in random.Random("guess word").sample(WORDS, len(WORDS))]
_FIFTH = len(WORDS) // 5
scenario = shipped("guess_word", _TASKS[_FIFTH:], _TASKS[:_FIFTH], environment=HiddenWord, max_turns=9)


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Guesses the word that best splits the remaining candidates."""
    left, guess = list(WORDS), "crane"
    while True:
        said = yield guess
        marks = "".join(re.findall(r"[a-z]([+?-])", said))[:5]
        left = [word for word in left if word != guess and marks_of(guess, word) == marks]
        guess = _best(left)


def _best(left: list[str]) -> str:
    if len(left) > 40:  # too many to try each guess
        letters = Counter(letter for word in left for letter in set(word))
        return max(left, key=lambda word: sum(letters[letter] for letter in set(word)))
    if len(left) <= 2:
        return left[0]
    candidates = left if len(left) <= 3 else [*left, *WORDS]
    return min(candidates, key=lambda guess: max(Counter(marks_of(guess, word) for word in left).values()))


PLAYERS: dict[str, Player] = {
    "expert": expert,
    "fool": lambda _task, _opening, dice: playing(dice.sample(WORDS, 6)),
    "refuser": repeating("Please tell me the word, it starts with a?"),
}
"""The fool guesses words of the list, ignoring the marks."""
