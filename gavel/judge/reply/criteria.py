"""Scores by criterion: the ids under which the judge gives them, and how they are combined into votes.

An id is a member's label followed by a criterion's letter, for example `W7QXa`. Labels do not occur in trajectory
text, so neither do ids. Ids are read by the same rules as labels: a missing id makes the reply invalid.
"""

import re
from collections.abc import Mapping, Sequence

from gavel.judge.reply.verdict import Scored, Verdict, read_verdict
from gavel.judge.rubric import Rubric
from gavel.judge.stats import mean_and_error


def ids_to_score(rubric: Rubric, labels: Sequence[str]) -> list[str]:
    """The ids that the judge scores: the labels, or one id per label and criterion for a rubric with criteria."""
    if not rubric.criteria:
        return list(labels)
    return [label + letter for letter, _ in rubric.lettered for label in labels]


def requested_ids(prompt: str, label: str) -> list[str]:
    """The ids under which a prompt asks for scores of a member: its label, or one id per criterion."""
    by_criterion = dict.fromkeys(re.findall(rf"\b{re.escape(label)}[a-z]\b", prompt))
    return list(by_criterion) or [label]


def sections(words: str) -> dict[str, str]:
    """The text of each criterion in `Rubric.words`, by letter."""
    _, *parts = re.split(r"^Criterion ([a-z]): .*$", words, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def read_scores(
    reply: str, rubric: Rubric, labels: Sequence[str], *, cut_off: bool = False, by_program: bool = False
) -> Verdict:
    """The score of every label, combined from the rubric's criteria if it has any. Raises `VerdictError`.

    `cut_off`: the reply ended at the token limit. `by_program`: see `read_verdict`.
    """
    wrappers = [*labels, *(criterion.name for criterion in rubric.criteria)]
    ids = ids_to_score(rubric, labels)
    verdict = read_verdict(reply, ids, wrappers, names=labels, cut_off=cut_off, by_program=by_program)
    if not rubric.criteria:
        return verdict
    return Verdict({label: _vote(verdict.scores, rubric, label) for label in labels}, verdict.repairs)


def _vote(scores: Mapping[str, Scored], rubric: Rubric, label: str) -> Scored:
    by_name = {criterion.name: scores[label + letter] for letter, criterion in rubric.lettered}
    values = {name: scored.score for name, scored in by_name.items()}
    score, _ = mean_and_error(list(values.values()), [criterion.weight for criterion in rubric.criteria])
    parts = [f"{name} {scored.score:g}: {scored.explanation}".removesuffix(": ") for name, scored in by_name.items()]
    return Scored(score, " · ".join(parts), values)
