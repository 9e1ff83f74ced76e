"""Fields beside the scores: whether one states another scale, corrects a score, or ranks the members otherwise.

{"scores": […], "summary": "K7QX looked first"}      harmless
{"scores": […], "rating_scale": "1-5"}               another scale
{"scores": […], "corrected": true}                   which scores are corrected is not said
"""

import json
import re
from typing import Any, TypeGuard

from gavel.judge.reply import vocabulary as say
from gavel.judge.reply.forms import Field, all_of, words
from gavel.judge.reply.surroundings import Said, problem_within, tells_a_scale

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
    if value is None or (thinks and not say.SCALE_KEY.search(key)):
        return ""
    if isinstance(value, bool):
        lower, higher = say.LOWER_IS_BETTER.search(spoken), say.HIGHER_IS_BETTER.search(spoken)
        wrong = (lower and value) or (higher and not value) or (say.CORRECTION_KEY.search(key) and value)
        inverted = value and re.search(r"inver|revers|negat|flip|percent|descend", key)
        return f"beside the scores it says {shown}" if wrong or inverted else ""
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


def _problem_with_number(key: str, value: float, label: str, said: Said, shown: str) -> str:
    if say.COUNT_KEY.search(key) or (0 <= value <= 1 and not say.SCORE_KEY.search(key)):
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


def _is_short(spoken: str) -> bool:
    return len(spoken) < 60


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float)
