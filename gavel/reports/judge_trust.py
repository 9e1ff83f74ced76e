"""How far a judge can be trusted: agreement, reliability and bias, each with its 95 % interval and its meaning.

Reads judged groups only: their votes, and the metric that serves as the reference. Without a reference the judge is
compared with itself alone, and the notes say so.
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
from gavel.llm.counted import counted
from gavel.reports.judge_verdict import MIN_GROUPS, DisagreeingGroup, disagreements, verdict
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement

_WARNINGS = 3
"""The judge's own, of which the most common are told."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One statistic, as the table and the page show it."""

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
        if low is None or high is None:
            return "–"
        if self.estimate.groups < MIN_GROUPS:
            return f"needs {MIN_GROUPS} groups"
        if low == high:  # every resample is the same: that is no certainty
            return "all groups alike"
        return f"{self._rounded(low)} to {self._rounded(high)}"

    def _rounded(self, value: float) -> str:
        return f"{value:z.{self.decimals}f}"


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    figures: list[Figure]


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """All that the table and the page show."""

    source: str
    judges: list[str]
    judgements: list[Judgement]
    """Of the scored members."""
    agreement: Agreement | None
    pairs: list[Pairs]
    """(score, reference) of each group's members; empty without a reference."""
    between_judges: InterRaterReliability | None
    sections: list[Section]
    facts: str
    """Numbers of groups, members and votes, in one line."""
    notes: list[str]
    """Limits of the figures, with the remedy."""
    bias: BiasReport
    unscored: dict[str, int]
    """Members without a score, by reason."""
    verdict: str
    disagreements: list[DisagreeingGroup]
    """With the reference, the worst first; empty without one."""


def read_report(groups: Sequence[TrajectoryGroup], reference: str | None, source: str) -> JudgeReport:
    """The figures of judged groups against the metric `reference`; None = `independent_reward` where members have it.

    Raises `JudgeError` when no member is judged, or none has the reference.
    """
    groups = judged_groups(groups)
    known = metric_names(groups)
    if reference is None and INDEPENDENT in known:
        reference = INDEPENDENT
    beside = None if reference is None else agreement(groups, reference)
    judges, calls, bias = judge_vs_judge(groups), call_vs_call(groups), bias_report(groups)
    sections: list[Section] = []
    if beside is not None:
        sections.append(Section(f"Agreement with {beside.reference}", _agreement(beside)))
    if judges is not None:
        sections.append(Section(f"Agreement between {len(judges.raters)} judges", _reliability(judges, "judge")))
    if calls is not None:
        title = f"Agreement between {counted(len(calls.raters), 'call')} on one group"
        sections.append(Section(title, _reliability(calls, "call")))
    sections.append(Section("Bias", _bias(bias)))
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
        bias=bias,
        unscored=_unscored(groups),
        verdict=verdict(groups, beside, calls, bias),
        disagreements=[] if reference is None else disagreements(groups, reference),
    )


def _agreement(of: Agreement) -> list[Figure]:
    auc = "success above failure, across all groups" if of.auc.groups else "needs a reference of two values"
    return [
        Figure("Kendall's tau-b", of.tau, "rank order: 1 same, 0 chance, -1 reversed"),
        Figure("Spearman's rho", of.spearman, "the same; large rank errors count more"),
        Figure("pair accuracy", of.pair_accuracy, "pairs in the right order; chance 0.5"),
        Figure("top-1", of.top_1, "the top-scored member is among the best"),
        Figure("AUC", of.auc, auc),
        Figure("advantage correlation", of.advantage_correlation, "Pearson's r of group-centered values"),
    ]


def _reliability(of: InterRaterReliability, rater: str) -> list[Figure]:
    k = len(of.raters)
    return [
        Figure("ICC(2,1)", of.icc_single, f"reliability of one {rater}'s score; 1 = no error"),
        Figure(f"ICC(2,{k})", of.icc_mean, f"reliability of the mean of all {k}"),
        Figure("Krippendorff's alpha", of.alpha, "beyond chance: 0.8 good, below 0.67 poor"),
    ]


def _bias(of: BiasReport) -> list[Figure]:
    return [
        Figure("position slope", of.position_slope, "score added from middle position to last", 3),
        Figure("length correlation", of.length_correlation, "Pearson's r of score and log length"),
        Figure("flip rate", of.flip_rate, "two calls disagree on a pair; chance 0.5"),
        Figure("tie rate", of.tie_rate, "different members with the same score"),
    ]


def _scored(groups: Sequence[TrajectoryGroup]) -> list[Judgement]:
    judgements = [member.judgement for group in groups for member in group]
    return [judgement for judgement in judgements if judgement is not None and judgement.score is not None]


def _facts(groups: Sequence[TrajectoryGroup]) -> str:
    scored = _scored(groups)
    errors = [judgement.standard_error for judgement in scored if judgement.standard_error is not None]
    parts = [
        counted(len(groups), "group"),
        f"{len(scored):,} of {counted(sum(map(len, groups)), 'member')} scored",
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
    warned = Counter(warning for group in groups if group.judgement for warning in group.judgement.warnings)
    notes = [f"In {counted(count, 'group')}: {warning}." for warning, count in warned.most_common(_WARNINGS)]
    if beside is None:
        others = f"; these members have: {', '.join(known)}" if known else "; these members have no metrics"
        notes.append(
            "Without a reference, nothing here says whether the judge is right. "
            f"Name one with --reference METRIC{others}."
        )
    if calls is None:
        notes.append(
            "No group was judged twice, so nothing here says how much the judge varies. Use gavel score --orders 2."
        )
    if len(groups) < MIN_GROUPS:
        notes.append(
            f"Intervals from fewer than {MIN_GROUPS} groups are too narrow, so none is shown: "
            f"judge at least {MIN_GROUPS - len(groups)} more."
        )
    return notes


def _unscored(groups: Sequence[TrajectoryGroup]) -> dict[str, int]:
    members = [member.judgement for group in groups for member in group]
    reasons = Counter((j and j.reason) or "not judged" for j in members if j is None or j.score is None)
    return dict(reasons.most_common())
