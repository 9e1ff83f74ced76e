"""How much two tasks say the same, by the words and the letters that they have in common.

    likeness("Refund order 1001.", "Please refund the orders 2002") -> 1.0

Numbers are one word, since the same request about another order is the same task. Endings and little words do not
count.
"""

import re

SAME = 0.6
"""Likeness from which two tasks are one."""
_LITTLE = re.compile(
    r"an?|and|are|as|at|be|been|but|by|can|could|do|does|for|from|ha[sd]|have|her|his|how|if?|in|into|is|its?|me|my|of"
    r"|on|or|our|please|so|some|that|the|their|them|then|there|these|they|this|to|us|was|we|were|what|when|where|which"
    r"|who|will|with|would|your?"
)
_ENDING = re.compile(r"(?:ings?|ed|es|s)$")
_NUMBER = re.compile(r"\w*\d\w*")


def likeness(one: str, other: str) -> float:
    """From 0 (nothing in common) to 1."""
    return max(_common(_words(one), _words(other)), _common(_letters(one), _letters(other)))


def _words(text: str) -> frozenset[str]:
    words = re.findall(r"\w+", _NUMBER.sub("#", text.casefold()).replace("#", " 0 "))
    return frozenset(_ENDING.sub("", word) if len(word) > 4 else word for word in words if not _LITTLE.fullmatch(word))


def _letters(text: str) -> frozenset[str]:
    """Runs of four characters, for scripts without spaces between words."""
    text = " ".join(_NUMBER.sub("0", text.casefold()).split())
    return frozenset(text[start : start + 4] for start in range(max(1, len(text) - 3)))


def _common(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 1.0
