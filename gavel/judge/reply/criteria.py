"""Scores by criterion: the ids under which a judge gives them, and the members' votes that they come to.

An id is a member's label with a criterion's letter. Labels do not occur in trajectory text, so neither do ids; two
ids differ in their label or in their one letter, so no two are alike. They are read just as labels are: a score that
is missing for one criterion is missing for the ballot.
"""

import re
from collections.abc import Mapping, Sequence

from gavel.judge.panel.schedule import mean_and_error
from gavel.judge.reply.verdict import Scored, Verdict, read_verdict
from gavel.judge.rubric import Rubric


def ids_to_score(rubric: Rubric, labels: Sequence[str]) -> list[str]:
    """What the judge is to score: the labels, or for a rubric with criteria an id for each label and criterion."""
    if not rubric.criteria:
        return list(labels)
    return [label + letter for letter, _ in rubric.lettered for label in labels]


def requested_ids(prompt: str, label: str) -> list[str]:
    """The ids under which a prompt asks for scores of a member: its label, or one for each criterion."""
    lettered = dict.fromkeys(re.findall(rf"\b{re.escape(label)}[a-z]\b", prompt))
    return list(lettered) or [label]


def sections(words: str) -> dict[str, str]:
    """What `Rubric.words` say of each criterion, by letter."""
    _, *parts = re.split(r"^Criterion ([a-z]): .*$", words, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def read_scores(reply: str, rubric: Rubric, labels: Sequence[str]) -> Verdict:
    """The score of every label, by the rubric's criteria where it has some. Raises `VerdictError` as `read_verdict`."""
    names = [criterion.name for criterion in rubric.criteria]
    verdict = read_verdict(reply, ids_to_score(rubric, labels), [*labels, *names])
    if not rubric.criteria:
        return verdict
    return Verdict({label: _vote(verdict.scores, rubric, label) for label in labels}, verdict.repairs)


def _vote(scores: Mapping[str, Scored], rubric: Rubric, label: str) -> Scored:
    by_name = {criterion.name: scores[label + letter] for letter, criterion in rubric.lettered}
    values = {name: scored.score for name, scored in by_name.items()}
    score, _ = mean_and_error(list(values.values()), [criterion.weight for criterion in rubric.criteria])
    said = [f"{name} {scored.score:g}: {scored.explanation}".removesuffix(": ") for name, scored in by_name.items()]
    return Scored(score, " · ".join(said), values)
