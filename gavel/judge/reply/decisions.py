"""The answers of a decision model -> scores by label.

    {"answers": [{"name": "W7QX", "probabilities": [0, 0, …, 0.4, 0.6]}]}

Answers are matched by the names of their questions. A question without an answer, or with an answer that is no
distribution, leaves its member without a score.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from gavel.judge.reply.distribution import Distribution, verdict_of
from gavel.judge.reply.errors import VerdictError
from gavel.judge.reply.verdict import Verdict
from gavel.judge.rubric import Rubric


def read_decisions(reply: str, rubric: Rubric, labels: Sequence[str], levels: int) -> Verdict:
    """The scores in the text that `gavel.llm.decisions` makes of a response.

    Raises `VerdictError` when there are none.
    """
    try:
        parsed: Any = json.loads(reply)
    except ValueError as error:
        raise VerdictError("it is not JSON") from error
    answers: Any = parsed.get("answers") if isinstance(parsed, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(answers, list):
        raise VerdictError("it holds no answers")
    found: dict[str, Distribution | str] = {}
    names = Counter[str]()
    for answer in cast("list[Any]", answers):
        fields = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
        if not isinstance(name := fields.get("name"), str):
            raise VerdictError("an answer has no name")
        names[name] += 1
        found[name] = _distribution(fields.get("probabilities"), levels)
    found |= {name: "its question has two answers" for name, count in names.items() if count > 1}
    return verdict_of(found, rubric, labels)


def _distribution(probabilities: object, levels: int) -> Distribution | str:
    try:
        return Distribution.of(probabilities, levels)
    except VerdictError as error:
        return error.message
