"""Attempts by number: labels are random and of one call, so what is stored names members by their place in the group.

name_attempts("W7QX looked first; trajectory B3KD guessed.", {"W7QX": (1,), "B3KD": (0, 2)})
-> "Attempt 2 looked first; attempts 1 and 3 guessed."
"""

import re
from collections.abc import Mapping, Sequence

_NOUNS = r"(?:trajector(?:y|ies)|attempts?|candidates?|rollouts?|responses?|labels?|ids?)"


def name_attempts(text: str, indices: Mapping[str, Sequence[int]]) -> str:
    """The text with each label, and the id of each criterion, replaced by the numbers of its attempts, from 1.

    `indices`: by label, the member's trajectories in the group; none = a reference trajectory.
    """
    if not indices:
        return text
    by_label = {label.casefold(): _name(own) for label, own in indices.items()}
    labels = "|".join(map(re.escape, sorted(by_label, key=len, reverse=True)))
    named = re.compile(
        rf"(?P<noun>(?<![^\W_]){_NOUNS}[ _#:-]{{1,2}})?(?P<open>[\[(\"'`‘“]?)(?<![A-Za-z0-9])"
        rf"(?P<label>{labels})[a-z]?(?![A-Za-z0-9])(?P<close>[\])\"'`’”]?)",
        re.IGNORECASE,
    )

    def replace(found: re.Match[str]) -> str:
        name = by_label[found["label"].casefold()]
        opening, closing = found["open"], found["close"]
        before = text[max(0, found.start() - 9) : found.start()].rstrip(" *_")[-1:]
        starts = before in ("", ".", "!", "?", "\n") if not found["noun"] else found["noun"][0].isupper()
        name = name[0].upper() + name[1:] if starts else name
        return name if opening and closing else opening + name + closing

    return named.sub(replace, text)


def _name(indices: Sequence[int]) -> str:
    numbers = [str(index + 1) for index in sorted(indices)]
    if not numbers:
        return "a reference attempt"
    if len(numbers) == 1:
        return f"attempt {numbers[0]}"
    return f"attempts {', '.join(numbers[:-1])} and {numbers[-1]}"
