"""Fields beside the scores: whether one states another scale, corrects a score, or ranks the members otherwise.

{"scores": […], "summary": "K7QX looked first"}      harmless
{"scores": […], "rating_scale": "1-5"}               another scale
{"scores": […], "corrected": true}                   which scores are corrected is not said
"""

import json
import re
from collections.abc import Sequence
from typing import Any, TypeGuard

from gavel.judge.reply import vocabulary as say
from gavel.judge.reply.claims import Said
from gavel.judge.reply.forms import Field, all_of, words
from gavel.judge.reply.surroundings import problem_within, tells_a_scale

_NOTHING = {"", "none", "null", "n/a", "na", "no", "false", "-", "nothing"}
_CLOSE = 1e-9


def problem_with(field: Field, said: Said) -> str:
    """What is wrong with a field beside the scores; empty = nothing."""
    return next(
        filter(None, (_problem(field.key, value, field.label.casefold(), said) for value in all_of(field.value))), ""
    )


def _problem(key: str, value: Any, label: str, said: Said) -> str:
    shown = json.dumps({key: value}, ensure_ascii=False, default=str)[:80]
    spoken = re.sub(r"[_'\"{}\[\]]", " ", f"{key} {said.mention.sub('member', str(value))}")
    thinks = say.OWN_THOUGHTS_KEY.search(key) or (label and re.search(r"comment|feedback|comparison", key))
    if value is None:
        return ""
    if thinks and not say.SCALE_KEY.search(key):
        return explains_otherwise(str(value), said, label or None)
    if say.STATE_KEY.search(key) and not _counts(key, value):
        return f"beside the scores it says {shown}"
    if isinstance(value, bool):
        lower, higher = say.LOWER_IS_BETTER.search(spoken), say.HIGHER_IS_BETTER.search(spoken)
        wrong = (lower and value) or (higher and not value) or (say.CORRECTION_KEY.search(key) and value)
        inverted = value and re.search(r"inver|revers|negat|flip|percent|descend|loss|penal|cost|error|swap|fail", key)
        return f"beside the scores it says {shown}" if wrong or inverted else ""
    spoken = re.sub(r"\bzero\b", "0", re.sub(r"\bone\b", "1", spoken))
    if _is_number(value) and (
        (value == 0 and re.search(r"best|ideal|target|perfect|optim|goal|top|max|high", key))
        or (value == 1 and re.search(r"worst|min|low", key))
    ):
        return f"it states another scale: {shown}"
    if not label and isinstance(value, str) and value.strip() and not _may_hold_text(key):
        return f"beside the scores it says {shown}"
    if key in ("min", "max") and _is_number(value) and 0 <= value <= 1:
        return ""
    if _ranks_otherwise(key, value, said):
        return f"its scores contradict {shown}"
    if (say.SCALE_KEY.search(key) and _is_another_scale(spoken)) or (_is_short(spoken) and tells_a_scale(spoken, said)):
        return f"it states another scale: {shown}"
    if say.CORRECTION_KEY.search(key) and not (isinstance(value, str) and value.strip().casefold() in _NOTHING):
        return "" if _is_number(value) and said.are(value, label or None) else f"it corrects itself: {shown}"
    if _is_number(value) and value in (0, 1) and say.SCALE_KEY.search(key):
        return ""
    if _is_number(value):
        return _problem_with_number(key, value, label, said, shown)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return problem_within(text if isinstance(value, str) else spoken, said) if text.strip() else ""


def explains_otherwise(text: str, said: Said, label: str | None) -> str:
    """What is wrong with an explanation: it says that the score should be another one."""
    for found in say.EXPLAINS_OTHERWISE.finditer(text):
        if not said.are(float(found["n"].replace(",", ".")), label):
            return f'an explanation gives another score ("{found[0]}")'
    return ""


def ranked_otherwise(fields: Sequence[Field], said: Said) -> str:
    """What is wrong with the ranks that entries give beside their scores, the best being 1."""
    ranks = [
        (field.value, -said.scores[field.label.casefold()])
        for field in fields
        if field.label and field.key in ("rank", "place", "placement", "ranking") and _is_number(field.value)
    ]
    ordered = [score for _, score in sorted(ranks)]
    return "" if ordered == sorted(ordered) else "the ranks beside its scores contradict them"


def _counts(key: str, value: Any) -> bool:
    """Whether a field that states whether the scores count says that they do."""
    if isinstance(value, bool):
        return value == bool(
            re.search("final|complete|valid", key) and not re.search("invalid|incomplete|not|non", key)
        )
    if isinstance(value, str):
        return value.strip().casefold() in say.GOOD_STATES | _NOTHING
    return _is_number(value) or not value


def _problem_with_number(key: str, value: float, label: str, said: Said, shown: str) -> str:
    penalty = say.PENALTY_KEY.search(key) and value
    if not penalty and (say.COUNT_KEY.search(key) or (0 <= value <= 1 and label and not say.SCORE_KEY.search(key))):
        return ""
    if (label or say.SCORE_KEY.search(key)) and said.are(value, label or None):
        return ""
    return f"beside the scores it gives another number: {shown}"


def _is_another_scale(spoken: str) -> bool:
    if any(float(number) not in (0, 1) for number in re.findall(r"\d+(?:\.\d+)?", spoken)):
        return True
    return bool(
        say.LOWER_IS_BETTER.search(spoken)
        or say.MEANING.search(spoken)
        or say.MEANING_UNSPACED.search(spoken)
        or say.NUMBER_WORD.search(spoken)
        or re.search(r"descend|asc\b|ascending|inver|revers|negat|percent|letter|star|like?rt", spoken, re.IGNORECASE)
    )


def _ranks_otherwise(key: str, value: Any, said: Said) -> bool:
    """Whether a ranking, or the best or worst member that a field names, is not that of the scores."""
    worst = bool(re.search(r"worst|weakest|loser|ascending", key))
    if isinstance(value, str) and (worst or re.search(r"best|winner|strongest|top|preferred", key)):
        named = [score for label, score in said.scores.items() if label in words(value)]
        extreme = min(said.scores.values()) if worst else max(said.scores.values())
        return len(named) == 1 and named[0] != extreme
    if _is_list(value) and re.search(r"rank|order|best|worst", key):
        scores = [
            said.scores[name.casefold()] for name in value if isinstance(name, str) and name.casefold() in said.scores
        ]
        return len(scores) == len(value) and sorted(scores, reverse=not worst) != scores
    return False


def _may_hold_text(key: str) -> bool:
    return any(pattern.search(key) for pattern in (say.TEXT_KEY, say.SCALE_KEY, say.STATE_KEY, say.CORRECTION_KEY))


def _is_short(spoken: str) -> bool:
    return len(spoken) < 60


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float)
