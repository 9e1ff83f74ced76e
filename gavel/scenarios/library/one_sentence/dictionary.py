"""Which words of a text are English: those that pyspellchecker's dictionary has.

No reward looks at it, so it tells whether a policy that learned to be short still writes words: `theseaisblue` is one
word to a counter, and none to a dictionary.
"""

import re
from functools import lru_cache
from importlib.util import find_spec

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
HAS_DICTIONARY = find_spec("spellchecker") is not None
"""Whether pyspellchecker is installed (the extra `real`)."""


def dictionary_share(text: str) -> float:
    """The share of the words that the dictionary has, from 0 to 1; 0 for a text without words."""
    words = [word.replace("’", "'").lower() for word in _WORD.findall(text)]
    return sum(map(_is_english, words)) / len(words) if words else 0.0


@lru_cache(16_384)
def _is_english(word: str) -> bool:
    return word in _dictionary() or word.removesuffix("'s") in _dictionary()


@lru_cache(1)
def _dictionary() -> frozenset[str]:
    """Loaded at the first word: a second, 20 MB."""
    from spellchecker import SpellChecker

    return frozenset(SpellChecker(language="en", distance=1).word_frequency.words())
