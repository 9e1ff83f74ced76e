"""The answer in a reply: its final object, or one object per label, with the text before and after it.

"Draft: {…} Final: {…}"     the last object, since it is called final
"{…} Now stricter: {…}"     two objects that differ: their scores contradict each other
"""

import re
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

from gavel.judge.reply import vocabulary as say
from gavel.judge.reply.errors import VerdictError
from gavel.judge.reply.forms import BETWEEN, KEYS, Answer, FormReader, words
from gavel.judge.reply.lenient_json import Broken, Found, find_values
from gavel.judge.reply.thoughts import begins_an_answer, without_tags

_BROKEN = "its last JSON object breaks off or is not valid JSON"


@dataclass(slots=True)
class _Reading:
    """What was found in a reply, in order."""

    rows: list[Answer]
    thoughts: list[tuple[int, int]]
    around: Counter[str]


def final_answer(text: str, known: Mapping[str, str], wrappers: Set[str]) -> tuple[Answer, str, str]:
    """The answer, the text before it without thoughts, and the text after it. Raises `VerdictError`.

    It is the last object, or sequence of adjacent objects, that names all labels, together with all others that do not
    stand before a final one; without one, the last sequence: the caller then finds the missing labels.
    """
    reading = _read(text, known, wrappers)
    rows, everyone = reading.rows, set(known.values())
    complete = [index for index, row in enumerate(rows) if row.names() >= everyone]
    if complete:
        last = complete[-1]
        first = rows[last].spans[0][0]
        earlier = [row for row in rows[:last] if not row.broken]
        rows = rows[last:] if _is_called_final(text[:first], earlier, text) else [*earlier, *rows[last:]]
    else:
        rows = [row for row in rows if row.broken] + rows[-1:]
    if any(row.broken for row in rows):
        raise VerdictError(_BROKEN)
    if not rows:
        raise VerdictError("it holds no complete JSON object with the trajectories' ids and scores")
    answer = rows[0]
    for row in rows[1:]:
        answer.add(row)
    answer.repairs += reading.around
    own = [span for row in reading.rows for span in row.spans]
    start, end = answer.spans[0][0], answer.spans[-1][1]
    if complete and any(first > start for first, _ in reading.thoughts):
        raise VerdictError("thoughts follow its JSON object")
    if complete and begins_an_answer(text[end:]):
        raise VerdictError("another answer begins after its JSON object")
    hidden = sorted([*own, *reading.thoughts])
    before = _without(text[:start], hidden)
    between = _without(text[start:end], [(a - start, b - start) for a, b in answer.spans])
    before = "\n".join(filter(str.strip, (before, between))) if between.strip() else before
    return answer, without_tags(before, known), without_tags(text[end:], known)


def _read(text: str, known: Mapping[str, str], wrappers: Set[str]) -> _Reading:
    reading = _Reading([], [], Counter())
    rows, position, aside = reading.rows, 0, ""
    for found in find_values(text, {*KEYS, *known}):
        match found:
            case Broken():
                rows.append(Answer(broken=True))
            case Found(None, repairs, start, end):
                reading.around += repairs
                if repairs["thoughts"]:
                    reading.thoughts.append((start, end))
                    position = max(position, end)
                    if start == 0:
                        rows.clear()
            case Found(value, repairs, start, end, fragment, comments):
                reader = FormReader(known, wrappers)
                reader.read(value)
                part = reader.answer
                between = aside + text[position:start]
                if not part.entries and not part.unknown_labels and not part.broken:
                    aside = between + " something else "
                    position = end
                    continue
                part.repairs += repairs
                part.broken |= fragment
                part.spans.append((start, end))
                part.comments += comments
                alone = part.names() >= set(known.values()) or set(words(between)) - known.keys() - BETWEEN
                if not rows or alone or rows[-1].broken:
                    rows.append(part)
                else:
                    rows[-1].add(part)
                aside, position = "", end
    return reading


def _is_called_final(before: str, earlier: list[Answer], text: str) -> bool:
    """Whether the text just before an object calls it the final one, and calls no earlier object so."""
    return _named_final(before) and not any(_named_final(text[: row.spans[0][0]]) for row in earlier if row.spans)


def _named_final(before: str) -> bool:
    lines = [
        line
        for line in before[-200:].split("\n")
        if line.strip(" \t`*_#") and not line.strip().startswith(("```", "~~~"))
    ]
    line = lines[-1].rpartition("}")[2].strip() if lines else ""
    return bool(say.FINAL_MARK.search(line) and say.FINAL.fullmatch(line.strip(" *_#`>")))


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    parts, position = list[str](), 0
    for start, end in spans:
        if start >= len(text):
            break
        parts.append(text[position : max(start, position)])
        position = max(position, end)
    return re.sub(r"\n{3,}", "\n\n", "".join([*parts, text[position:]]))
