"""The customer at the other end: says who it is, which colour it likes and where it lives, when it is asked.

It answers by keywords, the same for the same words, and goes when its wishes have been dealt with, well or badly, or
when its patience is at an end. With GAVEL_USER_MODEL a language model plays it, from `goal`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gavel.scenarios.library.retail_desk.wishes import MOVED, Case, Wish, who_of, words_of
from gavel.scenarios.task import Task

_IDENTITY = re.compile(r"\b(names?|postcodes?|postal|zip|identi\w*|verify|who|details|account)\b", re.IGNORECASE)
_COLOUR = re.compile(r"\b(colou?rs?|prefer\w*|alternatives?|stock|available)\b", re.IGNORECASE)
_ADDRESS = re.compile(r"\b(address\w*|where|street)\b", re.IGNORECASE)
_WISH = re.compile(r"\b(which|what|item|order|help)\b", re.IGNORECASE)
_UNKNOWN = re.compile(r"\b(numbers?|ids?|e-?mail|phone)\b", re.IGNORECASE)
_YES_OR_NO = re.compile(
    r"(^|[.!,;:?]\s*)(so )?(shall|should|do|does|is|are|was|would|may|can|could|will|have|did)\b"
    r"|\b(confirm|proceed|go ahead|okay|ok|correct|right|agree)\b",
    re.IGNORECASE,
)
_MORE = re.compile(r"\banything (else|more)\b", re.IGNORECASE)
GOODBYE, GIVES_UP = "Thank you. Goodbye.", "I have waited long enough. Goodbye."
_PATIENCE = 4
"""Messages that bring nothing forward, after which the customer goes."""


@dataclass(slots=True)
class Customer:
    """One customer in one episode."""

    case: Case
    told: set[str] = field(default_factory=set[str])
    idle: int = 0

    def answer(self, words: str, open_wishes: Sequence[Wish], *, is_done: bool) -> tuple[str, bool]:
        """What the customer says to the agent's words, and whether it goes.

        `open_wishes`: those of which the records show no trace yet. `is_done`: they show one of every wish.
        """
        asks = "?" in words
        if is_done and (not asks or _MORE.search(words)):
            return GOODBYE, True
        facts = self._facts_asked(words)
        new = [fact for fact in facts if fact not in self.told]
        self.told.update(facts)
        if not new:
            self.idle += 1
            if self.idle >= _PATIENCE:
                return GIVES_UP, True
        if facts:
            return " ".join(facts), False
        if asks:
            return ("Yes, please." if _YES_OR_NO.search(words) else "I do not know that."), False
        if open_wishes and len(open_wishes) < len(self.case.wishes):
            return f"And the other thing? {words_of(open_wishes[0])}", False
        return "I am still waiting for it to be done.", False

    def _facts_asked(self, words: str) -> list[str]:
        facts: list[str] = []
        if _IDENTITY.search(words):
            facts.append(who_of(self.case.customer))
        if _COLOUR.search(words):
            facts += [liked_colours(wish) for wish in self.case.wishes if wish.request == "exchange"]
        if _ADDRESS.search(words) and self.case.address:
            facts.append(f"My new address is {self.case.address}.")
        if facts or "?" not in words:
            return facts
        if _UNKNOWN.search(words):
            facts.append("I do not have that at hand.")
        if facts or _WISH.search(words):
            facts += [words_of(wish) for wish in self.case.wishes] or [MOVED]
        return facts


def liked_colours(wish: Wish) -> str:
    first, second = wish.colours
    return f"I would like the {wish.item} in {first}, or in {second} if there is none."


def goal(task: Task) -> str:
    """What a language model that plays the customer is told."""
    case = Case.model_validate(task.data)
    facts = [who_of(case.customer), *(words_of(wish) for wish in case.wishes)]
    facts += [liked_colours(wish) for wish in case.wishes if wish.request == "exchange"]
    if case.address:
        facts.append(
            f"I have moved. All orders that can still be redirected shall go to my new address: {case.address}."
        )
    return (
        "You contact a web shop. " + " ".join(facts) + " You say yes to what serves this, accept what the shop's rules "
        "forbid, and know nothing of order numbers or rules. You are done when the assistant has told you, for each of "
        "your wishes, that it is done or cannot be done."
    )
