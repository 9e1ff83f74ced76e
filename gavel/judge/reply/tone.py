"""Tone: whether the explanations of the best and the worst member tell of each other's work.

    W7QX 0.9 "Ignored the policy, wrong amount."    B3KD 0.2 "Correct and polite."    told the other way round
    W7QX 0.9 "Slow and careless, but correct."      B3KD 0.2 "Polite."                not

A clause that is a verdict is compared in `praise`. Here words of blame and of praise are counted in whole explanations;
only where the best member has nothing but blame and the worst nothing but praise have they been exchanged.
"""

import re
from collections.abc import Mapping
from functools import cache

from gavel.judge.reply.claims import Said
from gavel.judge.reply.lexicon import entries

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_ENOUGH = 2
"""Words of one kind that an explanation holds at least."""
_APART = 0.2
"""Below this difference, which of two members is better may be said either way."""
_REACH = 4
"""Words after "not" that it turns round."""
_NEGATIONS = frozenset(
    {
        *("not", "no", "never", "nothing", "without", "hardly", "neither", "nor", "none", "cannot", "isn't", "wasn't"),
        *("doesn't", "didn't", "don't", "aren't", "can't", "hasn't", "hadn't", "weren't", "won't", "instead", "rather"),
    }
)


def told_the_other_way_round(explanations: Mapping[str, str], said: Said) -> bool:
    """Whether the explanations, by label in lower case, of the best and of the worst members are exchanged."""
    scores = {label: said.scores[label] for label in explanations}
    if len(scores) < 2 or max(scores.values()) - min(scores.values()) < _APART:
        return False
    best = [tone(explanations[label]) for label, score in scores.items() if score == max(scores.values())]
    worst = [tone(explanations[label]) for label, score in scores.items() if score == min(scores.values())]
    return all(not praise and blame >= _ENOUGH for praise, blame in best) and all(
        not blame and praise >= _ENOUGH for praise, blame in worst
    )


def tone(text: str) -> tuple[int, int]:
    """The words of praise and of blame in a text; one after "not" counts as the other, and "but" ends what it turns."""
    praise = blame = 0
    for clause in re.split(r"[.,;:!?()\n]|\b(?:but|although|though|yet|while)\b", text.replace("’", "'")):
        words = [word.casefold() for word in _WORD.findall(clause)]
        negated = [index for index, word in enumerate(words) if word in _NEGATIONS]
        for index, word in enumerate(words):
            good = word in _words("praises")
            if not good and word not in _words("blames"):
                continue
            turned = sum(0 < index - at <= _REACH for at in negated) % 2 == 1
            praise += good != turned
            blame += good == turned
    return praise, blame


@cache
def _words(concept: str) -> frozenset[str]:
    return frozenset(entries(concept))
