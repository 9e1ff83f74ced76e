"""Columns: a further field that the entries have, over the whole group, beside the scores.

score .9 .5 .1   rank     1  2  3      agrees
score .9 .5 .1   passed   F  T  F      a problem: what did not pass scores above what did
score .9 .5 .1   letter   F  A  C      a problem
score .9 .5 .1   zorp     2  9  1      a problem, whatever "zorp" is: it does not rise with the scores
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from gavel.judge.reply.claims import Said
from gavel.judge.reply.forms import words
from gavel.judge.reply.lexicon import pattern
from gavel.judge.reply.praise import level_of, verdicts_contradict

_NUMBER = re.compile(r"[-+]?(?P<n>\d{1,6}(?:[.,]\d+)?)(?:\s?(?:/|of|out of)\s?(?P<of>\d{1,4})|\s?(?P<percent>%))?")
_LETTER = re.compile(r"(?P<letter>[A-FS])(?P<sign>[+−-]?)", re.IGNORECASE)
_COUNTS = re.compile(
    r"(?:^|_| )(?:num|n|count|steps?|turns?|calls?|tokens?|length|time|seconds?|duration|words?|messages?|lines?|chars"
    r"|version|retries|page|tool_calls|cost_usd|latency)(?:$|_| )|_(?:count|used|made|taken)$"
)
_SURE = re.compile(r"confiden|certain|sure|reliab")
_SPREAD = re.compile(r"std|stdev|stderr|spread|variance|margin|(?:^|_)error_bar")
_FACTOR = re.compile(
    r"weight|bonus|multipl|factor|adjust|offset|delta|shift|discount|correction|scal|modif|boost|credit|handicap|extra"
)
_PENALTY = re.compile(r"penal|deduct|malus|loss|minus|demerit|subtract")
_RANK = re.compile(r"(?:^|_| )(?:rank|ranking|place|placement|standing|tier|podium|ordinal)(?:$|_| )")
_POSITION = re.compile(
    r"(?:^|_| )(?:position|order|index|idx|number|no|nr|attempt_number|slot|seq|sequence|row)(?:$|_| )"
)
_AGAINST = re.compile(
    r"fail|error|mistake|violat|wrong|incorrect|bad|worst|los(?:e|t|er)|fault|issue|risk|sever|harm|halluc"
    r"|invent|reject"
    r"|broke|flaw|bug|problem|weak|unsafe|miss"
)
_FOR = re.compile(
    r"(?:^|_)(?:wins?|ok)(?:$|_)|success|succe|pass|correct|solv|complet|best|winner|won|good|accept|achiev|fulfil"
    r"|quality|verdict|grade|rating|tier|level"
    r"|letter|outcome|result|judge?ment|assess|overall|decision|status|mark|class|label|safe|score"
)
_NOT_JUDGED = re.compile(
    r"skip|guess|unread|draft|placeholder|example|estimat|tentativ|provision|unsure|uncertain|prelim|default"
    r"|assum|unverif"
    r"|truncat|timeout|^error$|missing|not_|invalid|dummy|mock|random|cut_off|unscored|abstain|refus|declin"
)
_JUDGED = re.compile(r"evaluat|scored|judged|(?:^|_)read$|seen|valid|certain|confident|final|reviewed|checked")
_TEXTS = re.compile(
    r"note|comment|remark|name|title|id$|tag|explan|reason|why|strength|weak|pros|cons|evidence|feedback|summary|quote"
)
SEVERITY = {
    **{"none": -20, "no": -20, "minimal": -15, "minor": -10, "low": -10, "mild": -10, "medium": 0, "moderate": 0},
    **{"major": 10, "high": 10, "severe": 20, "critical": 20, "yes": 10, "fatal": 30, "very high": 15, "very low": -15},
}
_RESTATES = re.compile(
    r"(?:raw|total|numeric|num|overall|final|my|scaled|normali[sz]ed|score|rating|points?|percent(?:age)?|pct"
    r"|stars?|marks?"
    r"|grade|value|out|of|max|in|as|on|the|int|\d+)+"
)
_WHOLES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 100, 1000)


def problem_with_column(columns: Mapping[str, Mapping[str, Any]], order: Sequence[str], said: Said) -> Iterator[str]:
    """What is wrong with the columns: values by label by name. `order`: the labels in the order of the entries."""
    criteria: dict[str, dict[str, float]] = {}
    for key, column in columns.items():
        column = {label: value for label, value in column.items() if label in said.scores and value not in (None, "")}
        numbers = {label: number for label, value in column.items() if (number := _number(value)) is not None}
        if not column or len(said.scores) < 2:
            continue
        if all(isinstance(value, bool) for value in column.values()):
            problem = _truth(key, {label: bool(value) for label, value in column.items()}, said)
        elif len(numbers) == len(column):
            problem = _numeric(key, numbers, order, said)
            if problem is None:
                criteria[key] = numbers
        else:
            problem = _textual(key, column, said)
        if problem:
            yield f"its scores contradict its field {key!r}" if problem == "order" else f"its field {key!r} {problem}"
    if criteria and not _criteria_agree(list(criteria.values()), said):
        yield f"its scores contradict its fields {', '.join(criteria)}"


def _numeric(key: str, numbers: dict[str, float], order: Sequence[str], said: Said) -> str | None:
    """The problem with a column of numbers; None = it is to be compared with the scores as a criterion is."""
    values, scores = list(numbers.values()), [said.scores[label] for label in numbers]
    if all(value == score for value, score in zip(values, scores, strict=True)):
        return ""
    if re.fullmatch(r"(?:score_)?(?:min|max|low|high|lower|upper)(?:_(?:bound|score))?", key):
        return "" if all(0 <= value <= 1 for value in values) else "may be another scale"
    if _SURE.search(key):
        return "says that the scores are not sure" if min(values) <= 0 else ""
    if _SPREAD.search(key):
        return "says that the scores are not sure" if max(values) > 0.5 else ""
    if _PENALTY.search(key):
        fits = all(abs(abs(value) - (1 - score)) < 1e-6 for value, score in zip(values, scores, strict=True))
        return "" if fits or not any(values) else "may change a score"
    if _FACTOR.search(key):
        return "" if set(values) <= {0} or set(values) <= {1} else "may change a score"
    if _RANK.search(key):
        return "" if _follows(numbers, said, rising=False) else "order"
    if _POSITION.search(key):
        in_order = [numbers[label] for label in order if label in numbers] == sorted(values)
        shown = [numbers[label] for label in said.scores if label in numbers] == sorted(values)
        return "" if in_order or shown or _follows(numbers, said, rising=False) else "order"
    if _COUNTS.search(key):
        return ""
    if len(set(values)) == 1 and not -1 <= values[0] <= 1:
        return "may be another scale"
    if _RESTATES.fullmatch(re.sub(r"[\s_-]", "", key)):
        pairs = list(zip(values, scores, strict=True))
        rounding = 0.5 if all(value == int(value) for value in values) and max(values) > 1 else 0.0051
        fits = any(all(abs(value - whole * score) <= rounding for value, score in pairs) for whole in _WHOLES)
        if max(values) <= 1:
            fits = all(abs(value - score) <= 0.0051 for value, score in pairs)
        return "" if fits and _follows(numbers, said, rising=True) else "gives other numbers"
    if _AGAINST.search(key):
        reverse = {label: -value for label, value in numbers.items()}
        return "order" if _follows(numbers, said, rising=True) and not _follows(reverse, said, rising=True) else ""
    return None


def _follows(numbers: Mapping[str, float], said: Said, *, rising: bool) -> bool:
    """Whether no pair of members is in the other order by its numbers than by its scores."""
    pairs = sorted((said.scores[label], value if rising else -value) for label, value in numbers.items())
    highest = float("-inf")
    previous, pending = None, highest
    for score, value in pairs:
        if score != previous:
            highest, previous = max(highest, pending), score
        if value < highest:
            return False
        pending = max(pending, value)
    return True


def _criteria_agree(columns: list[dict[str, float]], said: Said) -> bool:
    """Whether the mean of further numbers rises with the scores."""
    labels = [label for label in said.scores if all(label in column for column in columns)]
    means = {label: sum(column[label] for column in columns) / len(columns) for label in labels}
    return _follows(means, said, rising=True)


def _truth(key: str, column: dict[str, bool], said: Said) -> str:
    scores = said.scores
    lowest, highest = min(scores.values()), max(scores.values())
    if any(column.values()) and _NOT_JUDGED.search(key) and not re.search(r"not_?(?:skip|guess)", key):
        return "says that a score does not count"
    if not all(column.values()) and _JUDGED.search(key):
        return "says that a score does not count"
    for word, edge in (("best|winner|top|won", highest), ("worst|loser", lowest)):
        if re.search(word, key):
            return "" if all((scores[label] == edge) == value for label, value in column.items()) else "order"
    numbers = {label: float(value) for label, value in column.items()}
    against, for_it = _AGAINST.search(key), _FOR.search(key)
    if against and not for_it:
        blamed = [label for label, value in column.items() if value]
        wrong = len(blamed) == len(column) and max(scores[label] for label in blamed) >= 0.7
        return "" if _follows(numbers, said, rising=False) and not wrong else "order"
    if for_it:
        missed = [label for label, value in column.items() if not value]
        wrong = len(missed) == len(column) and max(scores[label] for label in missed) >= 0.7
        return "" if _follows(numbers, said, rising=True) and not wrong else "order"
    return "" if _follows(numbers, said, rising=True) or _follows(numbers, said, rising=False) else "order"


def _textual(key: str, column: Mapping[str, Any], said: Said) -> str:
    """A column of words: names of members, verdicts, or categories that are not known."""
    levels: dict[str, list[int]] = {}
    other: dict[str, str] = {}
    for label, value in column.items():
        if _is_list(value):
            if any(isinstance(item, int | float) for item in value):
                return "holds further numbers"
            problem = _relation(key, label, [str(item) for item in value], said)
            if problem:
                return problem
            continue
        text = str(value).strip()
        named = said.scores.keys() & set(words(text))
        if named and len(words(text)) <= 2:
            if problem := _relation(key, label, sorted(named), said):
                return problem
        elif not _TEXTS.search(key) and (level := _level(text)) is not None:
            levels[label] = [level]
        elif len(words(text)) <= 3:
            other[label] = text.casefold()
    if _AGAINST.search(key) and not _FOR.search(key):
        levels = {label: [SEVERITY.get(str(value).strip().casefold(), -9)] for label, value in column.items()}
        levels = {label: own for label, own in levels.items() if own != [-9]}
        other = {label: text for label, text in other.items() if label not in levels}
        levels = {label: [-level for level in own] for label, own in levels.items()}
    if verdicts_contradict(levels, said, apart=1):
        return "order"
    lengths = [len(words(text)) for text in other.values()]
    unknown = len(set(other.values())) > 1 and sum(lengths) < 2 * len(lengths) and not _TEXTS.search(key)
    return "holds words that cannot be compared with the scores" if unknown else ""


def _relation(key: str, label: str, named: Sequence[str], said: Said) -> str:
    """Other members that a field of a member names: those it is better or worse than."""
    others = [
        said.scores[name.casefold()] for name in named if name.casefold() in said.scores and name.casefold() != label
    ]
    own = said.scores[label]
    if not others:
        none = re.fullmatch(r"none|no one|nobody|-|", " ".join(named).casefold())
        edge = min(said.scores.values()) if re.search(r"better|beats|above|over", key) else max(said.scores.values())
        related = re.search(r"better|beats|above|over|worse|below|loses", key)
        return "order" if none and related and own != edge else ""
    if re.search(r"worse|below|loses", key):
        return "" if own <= min(others) else "order"
    if re.search(r"better|beats|above|over|outrank", key):
        return "" if own >= max(others) else "order"
    if re.search(r"similar|compar|tie|equal|same|closest|peer", key):
        return "" if max(abs(own - other) for other in others) <= 0.3 else "order"
    return "names another member"


def _level(text: str) -> int | None:
    letter = _LETTER.fullmatch(text.strip())
    if letter:
        steps = "FEDCBAS".index(letter["letter"].upper())
        return 3 * steps + {"+": 1, "": 0}.get(letter["sign"], -1) - 9
    level = 1 if pattern("yes").fullmatch(text) else -1 if pattern("no").fullmatch(text) else level_of(text)
    return None if level is None else 10 * level


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    found = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) and len(value) < 20 else None
    if not found:
        return None
    number = float(found["n"].replace(",", "."))
    if value.strip().startswith("-"):
        number = -number
    if found["of"] and float(found["of"]):
        return number / float(found["of"])
    return number / 100 if found["percent"] else number


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
