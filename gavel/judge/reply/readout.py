"""Digits read out of the log-probabilities of a reply's tokens -> scores by label.

    {"W7QX": 7, "K3FD": 4}      where "7" stood, the model held: 7 .55, 8 .30, 6 .10, … -> 7.2 of 9

A score is the mean of the scale weighted by the probabilities of its tokens, as in G-Eval (Liu et al. 2023,
arXiv:2303.16634), instead of the sampled digit: it is finer than the scale, and does not depend on luck. Tokens that
differ in space or punctuation (" 7", "7", ":7") are one digit. Probability that the listed tokens lack, or give to
anything but a digit of the scale, is off the scale: above `MAX_OFF_SCALE` the member has no score. As with replies in
words, the answer must stand alone.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

from gavel.judge.reply.distribution import NO_ANSWER, Moments, moments, object_of, verdict_of
from gavel.judge.reply.verdict import Verdict, VerdictError, ids_to_score, read_entries
from gavel.judge.rubric import Rubric

LEVELS = 10
"""The digits 0 to 9: each is one token for all tokenizers."""
MAX_OFF_SCALE = 0.2
_AROUND = " \t\r\n:=,;\"'`*|}"
"""Space and punctuation around a digit in a token."""
_SPACES = str.maketrans({"\u0120": " ", "\u010a": "\n", "\u2581": " "})
"""Spaces as some servers write them in tokens."""
_NUMBER = r"[+-]?\d(?:\s*[./]\s*\d|[\d.,%])*"
"""A whole number with its decimals or fraction, so that 7.5 and 7/10 are not read as 7."""
_SUM = 1.05
"""Max sum of probabilities: servers round log-probabilities."""


def read_readout(reply: str, rubric: Rubric, labels: Sequence[str]) -> Verdict:
    """The scores in the text that `gavel.llm.response` makes of a response.

    Raises `VerdictError` when there are none, and when the response has no log-probabilities.
    """
    fields = object_of(reply)
    text, tokens = fields.get("text"), fields.get("tokens")
    if not isinstance(text, str):
        raise VerdictError("it holds no text with tokens")
    if not isinstance(tokens, list) or not tokens:
        raise VerdictError("the server returned no log-probabilities of tokens, which the mode readout needs")
    try:
        alternatives = [[(str(one).translate(_SPACES), float(p)) for one, p in top] for _, top in cast("Any", tokens)]
        pieces = [str(token).translate(_SPACES) for token, _ in cast("Any", tokens)]
    except (TypeError, ValueError) as error:
        raise VerdictError("its tokens cannot be read") from error
    whole, starts = "".join(pieces), [0, *accumulate(map(len, pieces))]
    begin = whole.rfind(text.translate(_SPACES).strip())  # some servers list the tokens of thoughts too
    if begin < 0:
        raise VerdictError("its tokens are not those of its text")
    names = ids_to_score(rubric, labels)
    span = _find_answer(whole, begin, names)

    def read(name: str) -> Moments | str:
        found = list(_form(name).finditer(whole, *span))
        if len(found) != 1:
            return "it has two scores" if found else NO_ANSWER
        if len(number := found[0][1].rstrip(".,")) != 1:
            return f"its score is {number}, which is not on the scale from 0 to {LEVELS - 1}"
        place = bisect_right(starts, found[0].start(1)) - 1
        return "its digit is not a token of its own" if _digit(pieces[place]) is None else _weigh(alternatives[place])

    return verdict_of({name: read(name) for name in names}, rubric, labels)


def _find_answer(whole: str, begin: int, names: Sequence[str]) -> tuple[int, int]:
    """Begin and end of the final answer. Raises `VerdictError` unless it stands alone."""
    rest = text = whole[begin:]
    if re.search(r"[{\[<◁]", text):
        _, found, _, problems = read_entries(text, names)
        if problems:
            raise VerdictError("; ".join(problems))
        return begin + found.start, begin + found.end
    for name in names:  # lines of ids and digits
        rest = _form(name).sub(" ", rest)
    if re.search(r"\w", rest):
        raise VerdictError("it holds more than ids and digits")
    return begin, len(whole)


def _form(name: str) -> re.Pattern[str]:
    """An id and its number."""
    return re.compile(rf"(?<![^\W_]){re.escape(name)}[\"'`*]*(?:\s*[:=]\s*|\s+)({_NUMBER})")


def _weigh(alternatives: Sequence[tuple[str, float]]) -> Moments | str:
    if not alternatives:
        return "the server returned no log-probabilities for its digit"
    if any(math.isnan(logprob) or logprob > math.log(_SUM) for _, logprob in alternatives):
        return "a log-probability is no number up to 0"
    masses = [0.0] * LEVELS
    total = 0.0
    for token, logprob in alternatives:
        total += math.exp(logprob)
        if (digit := _digit(token)) is not None:
            masses[digit] += math.exp(logprob)
    on_scale = math.fsum(masses)
    if total > _SUM:
        return f"the probabilities of its tokens sum to {total:.3g}"
    if 1 - on_scale > MAX_OFF_SCALE:
        return f"{1 - on_scale:.0%} of the probability is off the scale from 0 to {LEVELS - 1}"
    return moments([mass / on_scale for mass in masses])


def _digit(token: str) -> int | None:
    """The digit of a token, or None."""
    bare = token.strip(_AROUND)
    return int(bare) if re.fullmatch(r"[0-9]", bare) else None
