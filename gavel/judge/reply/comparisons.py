"""Comparisons: whether a text compares members otherwise than their scores do.

"W7QX beats B3KD", "B3KD is worse than W7QX"    W7QX has no lower score than B3KD
"W7QX and B3KD tie."                            their scores are about the same
"better tone than B3KD"                         about a part of the work: no comparison of the whole
"""

import re
from functools import cache
from itertools import pairwise

from gavel.judge.reply.claims import Said
from gavel.judge.reply.clauses import LONG, denied, named
from gavel.judge.reply.lexicon import Words, pattern, source

OTHERS = Words(
    lambda plain: (
        r"\b(?:(?:both|all|the|any|every|each)(?: of)?(?: the)? (?:two |three |four )?(?:others?|rest|remaining)"
        r"|both|(?:other|all"
        r" other|any other|every other) (?:attempt|trajector|candidate|run|response|answer)\w*|the (?:competition"
        r"|pack|field))\b"
        rf"|the other two|{source('others', plain=plain)}"
    )
)

ONLY_IN_PART = re.compile(
    r"^\W{0,3}(?:in(?! (?:every|all|total|general|short))|at|on(?! (?:the whole|every|all|balance))"
    r"|for(?! (?:first|the (?:win|lead|top)))|regarding|with"
    r"|up to|until|except|apart|when|where|as far|as to|during|by)\b",
    re.IGNORECASE,
)


def beside_others(text: str, concept: str) -> bool:
    """Whether a clause puts its member above or below all others."""
    if text.isascii() and not pattern(concept, languages=_NOT_ENGLISH).search(text):
        found = _than_others(concept).search(text)
    else:
        found = pattern(concept).search(text)
    return bool(found) and not denied(text, found.start())


@cache
def _than_others(concept: str) -> Words:
    return Words(
        lambda plain: (
            rf"{source(concept, languages=('en',), plain=plain)}\W{{0,3}}(?:than\W+|to\W+|of\W+)?"
            rf"(?:{OTHERS.source(plain)})"
        )
    )


_NOT_ENGLISH = ("de", "es", "fr", "pt", "it", "ru", "zh", "ja", "ko", "nl", "pl")


_ALMOST = re.compile(
    r"\b(?:almost|nearly|not quite|close to|half|about|roughly|fast|presque|casi|quase|quasi|почти)\W*$|几乎|ほぼ",
    re.IGNORECASE,
)


def compares_subject_wrongly(text: str, said: Said, subject: str) -> bool:
    """Whether a clause of an explanation compares its member with another one against their scores."""
    scores, own = said.scores, said.scores[subject]
    members = [one for one in named(text, said) if one.label in scores and one.label != subject]
    for one in members:
        before, after = text[: one.start], text[one.end :]
        other = scores[one.label]
        part = ONLY_IN_PART.search(after)
        if part or re.search(r"\b(?:if|would|could)\b", text):
            continue
        above = re.search(
            source("better")
            + r"\W{0,3}(?:attempt |overall )?(?:than|als|que|di|чем|a|to)?\W{0,3}(?:trajectory |attempt |both )?\W*$",
            before,
            re.IGNORECASE,
        )
        below = re.search(
            source("worse")
            + r"\W{0,3}(?:attempt |overall )?(?:than|als|que|di|чем|a|to)?\W{0,3}(?:trajectory |attempt |both )?\W*$",
            before,
            re.IGNORECASE,
        )
        if re.search(r"\bthan\W*$", before) and (claim := pattern("deserves").search(before)):
            more = pattern("higher").search(before, claim.end())
            less = pattern("lower").search(before, claim.end())
            if (more and own <= other) or (less and own >= other):
                return True
        for found, wrong in ((above, own < other), (below, own > other)):
            if found and (wrong != denied(before, found.start())) and (wrong or own != other):
                return True
        if re.search(r"\bas (?:good|strong|well) as\W*$", before) and denied(before, len(before)) and own >= other:
            return True
        if re.search(r"\bas (?:bad|poor|weak|wrong) as\W*$", before) and denied(before, len(before)) and own < other:
            return True
        equal = re.search(
            source("equal") + r"(?:\W+(?:to|as|with|wie|a|à|que|zu|mit|con|с))?\W{0,3}(?:trajectory |attempt )?\W*$",
            before,
            re.IGNORECASE,
        )
        if equal and _ALMOST.search(before[: equal.start()]):
            continue
        if equal and not denied(before, equal.start()) and abs(own - other) > 0.1 and not re.search(r"\w", after):
            return True
        reverse = re.match(
            r"\W{0,4}(?:(?:is|was|does|did|(?:does|did|handles|handled) (?:this|it)|ist|est|es|é|è)\W+)?"
            r"(?:clearly |actually |far |much |slightly"
            r" |a bit )?" + source("better", "worse") + r"(?P<rest>.{0,30})",
            after,
            re.IGNORECASE,
        )
        if reverse and not re.search(
            r"\w", re.sub(r"\b(?:actually|hmm+|no|but|in fact|wait|well|then|still)\b", "", before, flags=re.IGNORECASE)
        ):
            better = bool(re.search(source("better"), after[: reverse.start("rest")], re.IGNORECASE))
            against = re.match(r"\W*(?:than (?:this|it|the)\b.*|overall\W*)?$", reverse["rest"], re.IGNORECASE)
            if against and ((better and other < own) or (not better and other > own)):
                return True
        if re.search(r"比\W*$", before) or (re.search(r"比", before) and len(members) > 1):
            better = pattern("better").search(after)
            worse = pattern("worse").search(after)
            if (better and own < other) or (worse and own > other):
                return True
    return False


def compares_wrongly(sentence: str, said: Said) -> str:
    """The comparison of two members in a sentence that their scores contradict."""
    scores = said.scores
    if sentence.rstrip().endswith(("?", "？")):
        return ""
    members = named(sentence, said)
    if not members:
        if len(set(scores.values())) > 1 and re.search(
            r"\b(?:all|both|everyone|every|these)\b|全部|都|alle|todos|tous|все", sentence, re.IGNORECASE
        ):
            found = pattern("equal").search(sentence)
            if found and not denied(sentence, found.start()) and not re.search(r"\w", sentence[found.end() :]):
                return sentence
        return ""
    for one, two in pairwise(members):
        if one.label not in scores or two.label not in scores:
            continue
        between, after = sentence[one.end : two.start], sentence[two.end : two.end + LONG]
        if len(between) > 60 or ONLY_IN_PART.search(after) or re.search(r"[.;]", between):
            continue
        first, second = scores[one.label], scores[two.label]
        tail = r"\W{0,4}(?:(?:attempt |overall )?(?:than|als|que|di|чем|of|to|a|trajectory|attempt|at)\W+){0,2}$"
        head = r"\W{0,4}(?:(?:is|was|does|did|are|ist|est|es|é|è|clearly|far|much|slightly|still|even|also|easily)\W+)"
        head += "{0,4}"
        foreign = len(between) < 24 and pattern("better", "worse", languages=_NOT_ENGLISH).search(between)
        if re.match(head + source("better") + tail, between, re.IGNORECASE) or (
            foreign and pattern("better", languages=_NOT_ENGLISH).search(between)
        ):
            wrong = first < second
        elif foreign or re.match(head + source("worse") + tail, between, re.IGNORECASE):
            wrong = first > second
        elif (
            re.fullmatch(r"\W*=\W*", between)
            or (
                re.match(
                    head + r"(?:as good as|equal to|tied with|identical to|on a par with|ties|ties with)\W*$",
                    between,
                    re.IGNORECASE,
                )
            )
            or (re.fullmatch(r"\W*(?:and|und|y|et|и|和)?\W*", between) and _tie_follows(after))
        ):
            wrong = abs(first - second) > 0.1
        else:
            continue
        if wrong != bool(pattern("not").search(between)):
            return sentence
    return ""


def _tie_follows(after: str) -> bool:
    return bool(
        re.match(r"\W{0,4}(?:are |were |is |sind |sont |son )?" + source("equal") + r"\W*$", after, re.IGNORECASE)
    )
