"""Fields that the schema does not ask for: taken only when they agree with the scores, or say nothing about them.

{"scores": […], "summary": "K7QX looked first"}              prose without another number, ranking or correction
{"scores": […], "rating_scale": "1-5"}                       another scale: a problem
[{"id": "K7QX", "score": .9, "rank": 2}, {…, "score": .5, "rank": 1}]
    ranks against the scores: a problem

A field of the entries is a column over the group. Its values, be they ranks, verdicts, letters or numbers, have to
rise or fall with the scores (`columns`); what a column of an unknown name means need not be known for that.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

from gavel.judge.reply import vocabulary as say
from gavel.judge.reply.claims import Said
from gavel.judge.reply.columns import problem_with_column
from gavel.judge.reply.declines import declines
from gavel.judge.reply.explanations import problem_with_explanation
from gavel.judge.reply.forms import Field, all_of
from gavel.judge.reply.grades import explains_otherwise
from gavel.judge.reply.lexicon import pattern, understood
from gavel.judge.reply.opinions import contradiction
from gavel.judge.reply.positions import in_every_reading, position
from gavel.judge.reply.surroundings import problem_within, sentences, tells_a_scale

_NOTHING = {"", "none", "null", "n/a", "na", "no", "false", "-", "nothing", "nothing to correct", "ok", "fine"}
_NAME_KEY = re.compile(
    r"^(?:.*_)?(?:title|name|model|task|language|lang|version|date|timestamp|id|uuid|rubric|judge|agent|role"
    r"|object|format"
    r"|schema_version|method|domain|topic|category)$"
)
_NOT_MEANT = re.compile(
    r"\b(?:transcripts? (?:are )?missing|none of these (?:numbers|scores)|not (?:actual|real|meant|final))\b",
    re.IGNORECASE,
)
_SPREAD_KEY = re.compile(r"mean|average|avg|median|min|lowest|max|highest|sum|total|range|spread|std|count|num|^n$|n_")
_MAX_ITEMS = 500


def problems_with(fields: Sequence[Field], said: Said) -> Iterator[str]:
    """What is wrong with the fields beside the scores and in the entries."""
    columns: dict[str, dict[str, Any]] = {}
    order = list(dict.fromkeys(field.label.casefold() for field in fields if field.label))
    picks = [_by_position(field, said) for field in fields]
    rest = [field for field, orders in zip(fields, picks, strict=True) if not orders]
    items = [(field, key, value) for field in rest for key, value in _parts(field.key, field.value, said)]
    if len(items) > _MAX_ITEMS:
        yield "its JSON holds too many fields beside the scores"
        return
    for field in fields:
        value: Any = field.value
        spoken = re.sub(r"[_'\"{}\[\]]", " ", f"{field.key} {value}")[:200]
        if _is_object(value) and not field.label and tells_a_scale(spoken, said):
            yield f"it states another scale: {_shown(field.key, value)}"
    for field, orders in zip(fields, picks, strict=True):
        problems = [_problem_with_list(field.key, names, said, _shown(field.key, field.value)) for names in orders]
        yield from problems[:1] if all(problems) else ()
    for field, key, value in items:
        label = field.label.casefold()
        if isinstance(value, str):
            text_of = partial(_problem_with_text, key, field=field, said=said)
            yield from filter(None, [in_every_reading(text_of, value, said, label)])
        if label:
            columns.setdefault(key, {})[label] = value
        elif isinstance(value, _ByMember):
            columns.setdefault(key, {}).update(value.values)
        elif not isinstance(value, str):
            yield from filter(None, [_problem_beside(key, value, said)])
    yield from filter(None, (_changes(key, column, said) for key, column in columns.items()))
    kept = {key: column for key, column in columns.items() if not _changes(key, column, said)}
    for part in said.by_criterion():
        yield from problem_with_column(kept, order, part)


_PICK_KEY = re.compile(
    r"^(?:the_|overall_)?(?:winner|best|worst|loser|preferred|choice|pick|favou?rite|top|strongest|weakest)"
    r"(?:_(?:attempt|trajectory|candidate|one|answer|response|member))?$"
)


def _by_position(field: Field, said: Said) -> list[list[str]]:
    """The labels of the members that a field names by position, in both orders that these may be counted in."""
    value: Any = field.value
    if "rank" in field.key and isinstance(value, str):
        value = re.split(r"\s*(?:[,;>]|\bthen\b|\band\b)\s*", value)
    key, listed = field.key, list[Any](value) if _is_list(value) else [value]
    words = all(isinstance(item, str) for item in listed)
    if field.label or not (_PICK_KEY.search(key) or ("rank" in key and words and len(listed) > 1)):
        return []
    orders = [[position(item, order).casefold() for item in listed] for order in (said, said.as_listed())]
    return [names for names in orders if names and all(names)]


class _ByMember:
    """The values of a field beside the scores that gives one for each member."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values


def _parts(key: str, value: Any, said: Said) -> Iterator[tuple[str, Any]]:
    """The plain values in a field, each under the names that lead to it."""
    for item in all_of(value):
        if _is_object(item):
            names = {str(name).casefold(): inner for name, inner in item.items()}
            if (
                names
                and names.keys() <= said.scores.keys()
                and not any(isinstance(v, dict | list) for v in names.values())
            ):
                yield key, _ByMember(names)
                continue
            for name, inner in names.items():
                yield from _parts(f"{key} {name}", inner, said)
        elif _is_list(item) and item and all(isinstance(part, str) and part.casefold() in said.scores for part in item):
            yield key, item
        elif _is_list(item) and any(isinstance(part, dict | list | str) for part in item):
            for inner in item:
                yield from _parts(key, inner, said)
        else:
            yield key, item


def _changes(key: str, column: Mapping[str, Any], said: Said) -> str:
    """Whether a field of the entries corrects or rescales their scores."""
    for label, value in column.items():
        shown = _shown(key, value)
        spoken = re.sub(r"[_'\"{}\[\]]", " ", f"{key} {said.mention.sub('member', str(value))}")
        if value is None or value is False or (isinstance(value, str) and value.strip().casefold() in _NOTHING):
            continue
        if _is_number(value) and said.are(value, label):
            continue
        if say.STATE_KEY.search(key) and not _counts(key, value) and not _is_verdict(value):
            return f"beside the scores it says {shown}"
        bounds = key in ("min", "max") and _is_number(value) and 0 <= value <= 1
        if say.SCALE_KEY.search(key) and _is_another_scale(spoken) and not bounds:
            return f"it states another scale: {shown}"
        if say.CORRECTION_KEY.search(key) and not (isinstance(value, str) and len(value) > 40):
            return f"it corrects itself: {shown}"
    return ""


def _problem_with_text(key: str, text: str, field: Field, said: Said) -> str:
    """What is wrong with a text that the schema does not ask for."""
    label, shown = field.label.casefold(), _shown(key, text)
    bare = text.strip().casefold()
    if re.fullmatch(r"(?:overall_|score_)?(?:confidence|certainty)", key) and bare in (
        "high",
        "very high",
        "medium",
        "moderate",
        "medium-high",
    ):
        return ""
    if (
        bare in _NOTHING
        or bare == label
        or (label and re.fullmatch(r"\d{1,3}\s?/\s?\d{1,3}|\d{1,3}(?:\.\d+)?\s?%", bare))
    ):
        return ""
    if (
        not label
        and bare in said.scores
        and re.search(r"best|worst|win|los|top|strong|weak|prefer|first|last|favou?r|pick|choice", key)
    ):
        return _problem_with_list(key, [bare], said, shown)
    if re.search(r"score|rating|grade|points", key) and say.NUMBER_WORD.search(text):
        return f"beside the scores it says {shown}"
    if declines(text) or _NOT_MEANT.search(text):
        return f"beside the scores it says {shown}"
    if contradiction(text, said.of_criterion(label), label) or (
        not label and contradiction(f"{key}: {text}".replace("_", " "), said)
    ):
        return f"its scores contradict {shown}"
    thinks = say.OWN_THOUGHTS_KEY.search(key)
    if thinks and field.before and not re.search("final", key):
        return explains_otherwise(text, said, label or None)
    if label:
        if problem := problem_with_explanation(text, said, label) or explains_otherwise(text, said, label):
            return problem
        return next(
            (f"a text beside a score may change it ({shown})" for part in sentences(text) if _doubts(part, said)), ""
        )
    spoken = re.sub(r"[_'\"{}\[\]]", " ", f"{key} {said.mention.sub('member', text)}")
    if not (
        say.TEXT_KEY.search(key) or say.SCALE_KEY.search(key) or say.STATE_KEY.search(key) or _NAME_KEY.search(key)
    ):
        return f"beside the scores it says {shown}"
    if say.STATE_KEY.search(key) and not _counts(key, text):
        return f"beside the scores it says {shown}"
    if (say.SCALE_KEY.search(key) and _is_another_scale(spoken)) or (len(spoken) < 60 and tells_a_scale(spoken, said)):
        return f"it states another scale: {shown}"
    if say.CORRECTION_KEY.search(key):
        return f"it corrects itself: {shown}"
    if any(_doubts(part, said) for part in sentences(text)):
        return f"beside the scores it says {shown}"
    return problem_within(text, said)


def _doubts(sentence: str, said: Said) -> bool:
    """Whether a sentence that was not asked for speaks of the scores in words that are not understood."""
    bare = said.mention.sub(" ", sentence)
    words = re.findall(r"[^\W\d_]+", bare.casefold())
    about = say.SCORE_TALK.search(bare)
    begins = " ".join(bare.split()[:3])
    named = said.mention.search(sentence)
    if (about or (len(words) <= 4 and not named)) and pattern("unmeant", "revises").search(bare):
        return True
    if not named and pattern("unmeant", "interrupts", "rereads").search(begins):
        return True
    if (about or len(words) <= 6) and pattern("meaning").search(bare) and not said.mention.search(sentence):
        return bool(about) or bool(re.search(r"\b(?:small|low|high|lower|big)\b", bare))
    strange = [word for word in words if word not in understood()]
    return bool(re.search(r"\b(?:scores?|ratings?|numbers|figures)\b", bare, re.IGNORECASE)) and bool(strange)


def _problem_beside(key: str, value: Any, said: Said) -> str:
    """What is wrong with a number, a truth value or a list beside all scores."""
    shown = _shown(key, value)
    spoken = re.sub(r"[_'\"{}\[\]]", " ", f"{key} {value}")
    if value is None:
        return ""
    if _is_list(value):
        return _problem_with_list(key, value, said, shown)
    if isinstance(value, bool):
        return "" if _flag_is_harmless(key, spoken, value) else f"beside the scores it says {shown}"
    if not _is_number(value):
        return f"beside the scores it says {shown}"
    scores = list(said.scores.values())
    if (value in (0, 1) and say.SCALE_KEY.search(key)) or (key in ("min", "max") and 0 <= value <= 1):
        wrong_end = (value == 0) == bool(re.search(r"best|ideal|target|perfect|optim|goal|top|max|high", key))
        poles = re.search(r"best|ideal|target|perfect|optim|goal|top|max|high|worst|min|low", key)
        return f"it states another scale: {shown}" if poles and wrong_end else ""
    if say.STATE_KEY.search(key) or say.PENALTY_KEY.search(key) or say.CORRECTION_KEY.search(key):
        neutral = not value or (say.CORRECTION_KEY.search(key) and said.are(value)) or key == "version"
        return "" if neutral else f"beside the scores it says {shown}"
    if re.search(r"best|ideal|target|perfect|optim|goal|worst", key):
        return f"it states another scale: {shown}"
    summaries = (len(scores), sum(scores), sum(scores) / len(scores), max(scores) - min(scores), *scores)
    if any(abs(value - each) < 0.006 for each in summaries):
        return ""
    if (say.COUNT_KEY.search(key) and not _SPREAD_KEY.search(key)) or re.search(r"tokens?|seconds?|time|steps", key):
        return f"beside the scores it says {shown}" if re.search("confiden|certain", key) and not value else ""
    return f"beside the scores it gives another number: {shown}"


def _flag_is_harmless(key: str, spoken: str, value: bool) -> bool:
    if say.LOWER_IS_BETTER.search(spoken):
        return not value
    if say.HIGHER_IS_BETTER.search(spoken):
        return value
    if say.STATE_KEY.search(key):
        return _counts(key, value)
    if re.search(
        r"(?:^|_)(?:ok|success|succeeded|done|confident|ready|json|normali[sz]ed|relative|scored|evaluated)$", key
    ):
        return value
    return not value


def _problem_with_list(key: str, value: list[Any], said: Said, shown: str) -> str:
    """A list of members has to be in the order of their scores; of numbers, only the bounds of the scale may"
    " be listed."""
    names = [item.casefold() for item in value if isinstance(item, str)]
    if names and all(name in said.scores for name in names):
        scores = [said.scores[name] for name in names]
        lowest, highest = min(said.scores.values()), max(said.scores.values())
        if re.search(r"equal|tie|same", key):
            return "" if max(scores) - min(scores) <= 0.1 else f"its scores contradict {shown}"
        worst = bool(re.search(r"worst|weak|los|bottom|fail|ascend|last|disqual|reject|elimin|drop", key))
        if len(names) < len(said.scores):
            edge = lowest if worst else highest
            ordered = sorted(said.scores.values(), reverse=not worst)[: len(scores)]
            agrees = sorted(scores, reverse=not worst) == ordered or all(score == edge for score in scores)
            return "" if agrees else f"its scores contradict {shown}"
        orders = [[name for name in order if name in names] for order in (said.scores, said.listed)]
        listed = names in orders and re.search(
            r"^(?:ids?|labels?|members?|trajectories|attempts|candidates|shown)", key
        )
        return "" if listed or scores == sorted(scores, reverse=not worst) else f"its scores contradict {shown}"
    if say.SCALE_KEY.search(key) and value in ([0, 1], [0.0, 1.0]):
        return ""
    if all(_is_number(item) for item in value) and value == list(said.scores.values()):
        return ""
    return f"beside the scores it says {shown}" if value else ""


def _counts(key: str, value: Any) -> bool:
    """Whether a field that states whether the scores count says that they do."""
    if isinstance(value, bool):
        good = re.search("final|complete|valid", key) and not re.search("invalid|incomplete|not|non", key)
        return value == bool(good)
    if isinstance(value, str):
        return value.strip().casefold() in say.GOOD_STATES | _NOTHING
    return _is_number(value) or not value


def _is_verdict(value: Any) -> bool:
    return isinstance(value, str) and bool(pattern("awful", "poor", "fair", "good", "superb").fullmatch(value.strip()))


def _is_another_scale(spoken: str) -> bool:
    if any(float(number) not in (0, 1) for number in re.findall(r"\d+(?:\.\d+)?", spoken)):
        return True
    return bool(
        say.LOWER_IS_BETTER.search(spoken)
        or say.MEANING.search(spoken)
        or say.MEANING_UNSPACED.search(spoken)
        or say.NUMBER_WORD.search(re.sub(r"\b(?:zero|one)\b", "", spoken))
        or re.search(
            r"descend|asc\b|ascending|inver|revers|negat|percent|letter|star|like?rt|\bmin\b", spoken, re.IGNORECASE
        )
    )


def _shown(key: str, value: Any) -> str:
    return json.dumps({key: value}, ensure_ascii=False, default=str)[:80]


def _is_object(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
