"""The figures that tell how far a judge can be trusted, in plain words, from groups that it has judged.

Everything is read from the groups: votes, and the metrics that serve as a reference. Without a reference the judge is
only compared with itself, and the notes say so.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gavel.judge.audit.agreement import INDEPENDENT, Agreement, Pairs, agreement, metric_names, score_pairs
from gavel.judge.audit.bias import BiasReport, bias_report
from gavel.judge.audit.bootstrap import IntervalEstimate
from gavel.judge.audit.inter_rater import InterRaterReliability, call_vs_call, judge_vs_judge
from gavel.judge.audit.votes import judged_groups, voting_models
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement

_FEW = 10


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    estimate: IntervalEstimate
    meaning: str
    decimals: int = 2

    @property
    def value(self) -> str:
        return "–" if self.estimate.value is None else self._rounded(self.estimate.value)

    @property
    def interval(self) -> str:
        low, high = self.estimate.low, self.estimate.high
        return "–" if low is None or high is None else f"{self._rounded(low)} to {self._rounded(high)}"

    def _rounded(self, value: float) -> str:
        return f"{value:z.{self.decimals}f}"


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    figures: list[Figure]


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """All that is printed and drawn."""

    source: str
    judges: list[str]
    judgements: list[Judgement]
    """Of the members that have a score."""
    agreement: Agreement | None
    pairs: list[Pairs]
    """Score and reference, group by group; empty without a reference."""
    between_judges: InterRaterReliability | None
    sections: list[Section]
    facts: str
    """How much was judged, in one line."""
    notes: list[str]
    """What the reader must know before believing the figures."""
    bias: BiasReport
    unscored: dict[str, int]
    """Members without a score, by reason."""


def read_report(groups: Sequence[TrajectoryGroup], reference: str | None, source: str) -> JudgeReport:
    """The figures of judged groups; `reference` None = the rewards that they came with, if they did.

    Raises `JudgeError` when no member is judged, or none has the reference.
    """
    groups = judged_groups(groups)
    known = metric_names(groups)
    if reference is None and INDEPENDENT in known:
        reference = INDEPENDENT
    beside = None if reference is None else agreement(groups, reference)
    judges, own = judge_vs_judge(groups), bias_report(groups)
    calls = call_vs_call(groups)
    sections = []
    if beside is not None:
        sections.append(Section(f"The judge beside {beside.reference}", _agreement(beside)))
    if judges is not None:
        sections.append(Section(f"{len(judges.raters)} judges beside each other", _reliability(judges, "judge")))
    if calls is not None:
        title = f"{len(calls.raters)} calls on a group beside each other"
        sections.append(Section(title, _reliability(calls, "call")))
    sections.append(Section("Bias", _bias(own)))
    return JudgeReport(
        source=source,
        judges=voting_models(groups),
        judgements=_scored(groups),
        agreement=beside,
        pairs=[] if reference is None else [score_pairs(group, reference) for group in groups],
        between_judges=judges,
        sections=sections,
        facts=_facts(groups),
        notes=_notes(groups, beside, calls, known),
        bias=own,
        unscored=_unscored(groups),
    )


def _agreement(of: Agreement) -> list[Figure]:
    auc = "a success above a failure, over all groups" if of.auc.groups else "only for a reference of two values"
    return [
        Figure("Kendall's tau-b", of.tau, "same order: 1 always, 0 by chance, -1 never"),
        Figure("Spearman's rho", of.spearman, "the same; ranks far off weigh more"),
        Figure("pair accuracy", of.pair_accuracy, "the better of two scores higher; chance 0.5"),
        Figure("top-1", of.top_1, "the highest score goes to one of the best"),
        Figure("AUC", of.auc, auc),
        Figure("advantage correlation", of.advantage_correlation, "of distances from the group's mean"),
    ]


def _reliability(of: InterRaterReliability, rater: str) -> list[Figure]:
    k = len(of.raters)
    return [
        Figure("ICC(2,1)", of.icc_single, f"share of one {rater}'s scores that is not error"),
        Figure(f"ICC(2,{k})", of.icc_mean, f"the same, for the mean of all {k}"),
        Figure("Krippendorff's alpha", of.alpha, "beyond chance: 0.8 is good, below 0.67 poor"),
    ]


def _bias(of: BiasReport) -> list[Figure]:
    return [
        Figure("position slope", of.position_slope, "score a call adds from middle place to last", 3),
        Figure("length correlation", of.length_correlation, "of score and characters written"),
        Figure("flip rate", of.flip_rate, "two calls rank a pair oppositely; chance 0.5"),
        Figure("tie rate", of.tie_rate, "two different members score the same"),
    ]


def _scored(groups: Sequence[TrajectoryGroup]) -> list[Judgement]:
    judgements = [member.judgement for group in groups for member in group]
    return [judgement for judgement in judgements if judgement is not None and judgement.score is not None]


def _facts(groups: Sequence[TrajectoryGroup]) -> str:
    scored = _scored(groups)
    errors = [judgement.standard_error for judgement in scored if judgement.standard_error is not None]
    parts = [
        f"{len(groups):,} group{'s' * (len(groups) != 1)}",
        f"{len(scored):,} of {sum(map(len, groups)):,} members scored",
        f"{sum(len(judgement.votes) for judgement in scored):,} votes",
    ]
    if errors:
        parts.append(f"mean standard error {fmean(errors):.3f}")
    return " · ".join(parts)


def _notes(
    groups: Sequence[TrajectoryGroup],
    beside: Agreement | None,
    calls: InterRaterReliability | None,
    known: Sequence[str],
) -> list[str]:
    notes = []
    if beside is None:
        others = f"; these members have: {', '.join(known)}" if known else ", and these members have no numbers"
        notes.append(
            "There is no reference, so nothing here says whether the judge is right. "
            f"--reference METRIC names one{others}."
        )
    if calls is None:
        notes.append("No group was judged twice, so the judge cannot be compared with itself: gavel score --orders 2.")
    if len(groups) < _FEW:
        notes.append(f"Intervals from fewer than {_FEW} groups are too narrow.")
    return notes


def _unscored(groups: Sequence[TrajectoryGroup]) -> dict[str, int]:
    members = [member.judgement for group in groups for member in group]
    reasons = Counter((j and j.reason) or "not judged" for j in members if j is None or j.score is None)
    return dict(reasons.most_common())
