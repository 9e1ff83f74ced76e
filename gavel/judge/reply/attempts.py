"""Attempts by number: labels are random and of one call, so what is stored names members by their place in the group.

name_attempts("W7QX looked first; trajectory B3KD guessed.", {"W7QX": (1,), "B3KD": (0, 2)})
-> "Attempt 2 looked first; attempts 1 and 3 guessed."
"""

import re
from collections.abc import Mapping, Sequence

_RUN = re.compile(r"[A-Za-z0-9]+")
"""A whole word of the letters and digits that labels consist of."""
_NOUNS = r"(?:trajector(?:y|ies)|attempts?|candidates?|rollouts?|responses?|labels?|ids?)"
_BEFORE = re.compile(rf"(?P<noun>(?<![^\W_]){_NOUNS}[ _#:-]{{1,2}})?(?P<open>[\[(\"'`‘“]?)\Z", re.IGNORECASE)
"""What stands before a label and belongs to it."""
_LONGEST_NOUN = 16
"""Characters of it, at most."""
_CLOSING = re.compile(r"[\])\"'`’”]")


def name_attempts(text: str, indices: Mapping[str, Sequence[int]]) -> str:
    """The text with each label, and the id of each criterion, replaced by the numbers of its attempts, from 1.

    `indices`: by label, the member's trajectories in the group; none = a reference trajectory.
    """
    if not indices:
        return text
    by_label = {label.casefold(): _name(own) for label, own in indices.items()}
    parts, end = list[str](), 0
    for found in _RUN.finditer(text):
        word = found[0].casefold()
        name = by_label.get(word) or (by_label.get(word[:-1]) if word[-1].isalpha() else None)
        if name is None:
            continue
        before = _BEFORE.search(text, max(end, found.start() - _LONGEST_NOUN), found.start())
        assert before
        closing = _CLOSING.match(text, found.end())
        written = text[max(0, before.start() - 9) : before.start()].rstrip(" *_")[-1:]
        starts = before["noun"][0].isupper() if before["noun"] else written in ("", ".", "!", "?", "\n")
        name = name[0].upper() + name[1:] if starts else name
        bracketed = before["open"] and closing
        parts += text[end : before.start()], name if bracketed else before["open"] + name + (closing or [""])[0]
        end = closing.end() if closing else found.end()
    return "".join([*parts, text[end:]])


def _name(indices: Sequence[int]) -> str:
    numbers = [str(index + 1) for index in sorted(indices)]
    if not numbers:
        return "a reference attempt"
    if len(numbers) == 1:
        return f"attempt {numbers[0]}"
    return f"attempts {', '.join(numbers[:-1])} and {numbers[-1]}"
