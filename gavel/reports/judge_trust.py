"""Trust in a judge: agreement, reliability and bias, each with its 95 % interval and its meaning; a summary in a
sentence; and the report page.

Reads judged groups only: their votes, and the metric that serves as the reference. Without a reference the judge is
compared with itself alone, and the notes say so.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from gavel.base.text import counted
from gavel.judge.audit.agreement import (
    INDEPENDENT,
    Agreement,
    InterRaterReliability,
    agreement,
    call_vs_call,
    judge_vs_judge,
    kendall_tau,
    metric_names,
    score_pairs,
)
from gavel.judge.audit.bias import BiasReport, bias_report, length_correlation
from gavel.judge.audit.bootstrap import UNDEFINED, IntervalEstimate
from gavel.judge.audit.votes import judged_groups, voting_models
from gavel.reports.charts import score_histogram
from gavel.reports.page import render_page
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement

MIN_GROUPS = 10
"""The bootstrap's intervals are too narrow below this number of groups."""
_HALF_WIDTH = 0.1
"""Max half width of tau's interval for a verdict."""
_SPREAD = 0.5
"""Standard deviation of tau between groups, where too few tell."""
_GOOD, _SOME = 0.6, 0.3
"""Tau from which a judge ranks as the reference does, and does so in part."""
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
        return self._rounded(self.estimate.value)

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

    def _rounded(self, value: float | None) -> str:
        return "–" if value is None else f"{value:z.{self.decimals}f}"


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """All that the table and the page show."""

    source: str
    groups: list[TrajectoryGroup]
    judges: list[str]
    agreement: Agreement | None
    between_judges: InterRaterReliability | None
    sections: dict[str, list[Figure]]
    """Figures by title."""
    facts: str
    """Numbers of groups, members and votes, in one line."""
    notes: list[str]
    """Limits of the figures, with the remedy."""
    unscored: dict[str, int]
    """Members without a score, by reason."""
    verdict: str
    """Agreement, or what stands in for it, how often the judge is right, and the biases that show, in sentences."""


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
    labels = UNDEFINED if reference is None else length_correlation(groups, reference)
    sections: dict[str, list[Figure]] = {}
    if beside is not None:
        sections[f"Agreement with {beside.reference}"] = [
            Figure("Kendall's tau-b", beside.tau, "rank order: 1 same, 0 chance, -1 reversed"),
            Figure("pair accuracy", beside.pair_accuracy, "pairs in the right order; chance 0.5"),
            Figure("top-1", beside.top_1, "the top-scored member is among the best"),
            Figure("advantage correlation", beside.advantage_correlation, "Pearson's r of group-centered values"),
        ]
    for rater, where, found in (("judge", "", judges), ("call", " on one group", calls)):
        if found is not None:
            k = len(found.raters)
            sections[f"Agreement between {counted(k, rater)}{where}"] = [
                Figure("ICC(2,1)", found.icc_single, f"reliability of one {rater}'s score; 1 = no error"),
                Figure(f"ICC(2,{k})", found.icc_mean, f"reliability of the mean of all {k}"),
            ]
    beside_length = [Figure("length, reference", labels, "that of the reference: what length is worth")]
    sections["Bias"] = [
        Figure("position slope", bias.position_slope, "score added from middle position to last", 3),
        Figure("length correlation", bias.length_correlation, "Pearson's r of score and log length"),
        *(beside_length if reference is not None else []),
        Figure("flip rate", bias.flip_rate, "two calls disagree on a pair; chance 0.5"),
        Figure("tie rate", bias.tie_rate, "different members with the same score"),
    ]
    members = [member.judgement for group in groups for member in group]
    reasons = Counter((j and j.reason) or "not judged" for j in members if j is None or j.score is None)
    said = _agreement_in_words(groups, beside, calls), _right(groups), _biases(bias, labels)
    return JudgeReport(
        source=source,
        groups=groups,
        judges=voting_models(groups),
        agreement=beside,
        between_judges=judges,
        sections=sections,
        facts=_facts(groups),
        notes=_notes(groups, beside, calls, known),
        unscored=dict(reasons.most_common()),
        verdict=" ".join(filter(None, said)),
    )


def _scored(groups: Sequence[TrajectoryGroup]) -> list[tuple[float, Judgement]]:
    judgements = [member.judgement for group in groups for member in group if member.judgement is not None]
    return [(judgement.score, judgement) for judgement in judgements if judgement.score is not None]


def _facts(groups: Sequence[TrajectoryGroup]) -> str:
    scored = _scored(groups)
    errors = [judged.standard_error for _, judged in scored if judged.standard_error is not None]
    parts = [
        counted(len(groups), "group"),
        f"{len(scored):,} of {counted(sum(map(len, groups)), 'member')} scored",
        f"{sum(len(judgement.votes) for _, judgement in scored):,} votes",
        *([f"mean standard error {fmean(errors):.3f}"] if errors else []),
    ]
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
            f"Name one with --reference METRIC{others}. Or label 50 pairs, and learn how often it is: "
            "gavel judge golden FILE."
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


def groups_needed(taus: Sequence[float]) -> int:
    """Groups after which tau is known to ±0.1, by the spread of its values in the groups there are."""
    spread = max(stdev(taus), 0.1) if len(taus) >= MIN_GROUPS else _SPREAD
    return max(MIN_GROUPS, math.ceil((1.96 * spread / _HALF_WIDTH) ** 2))


def _agreement_in_words(
    groups: Sequence[TrajectoryGroup], beside: Agreement | None, calls: InterRaterReliability | None
) -> str:
    if beside is None:
        again = ""
        if calls is not None and calls.icc_mean.value is not None and calls.icc_mean.groups >= MIN_GROUPS:
            steady = "much the same" if calls.icc_mean.value >= 0.75 else "noticeably different"
            again = f" Asked again it gives {steady} scores (ICC {calls.icc_mean.value:.2f})."
        return f"Whether this judge is right cannot be said without a reference.{again}"
    tau, name = beside.tau, beside.reference
    if tau.value is None:
        return f"No group has members that differ in {name}, so the judge cannot be compared with it."
    taus = [found for group in groups if (found := kendall_tau(score_pairs(group, name))) is not None]
    need = groups_needed(taus)
    if tau.groups < MIN_GROUPS:
        return (
            f"Too few groups for a verdict: {counted(tau.groups, 'group')} can be compared with {name}; "
            f"an interval takes at least {MIN_GROUPS}, and about {need} give Kendall's tau to ±{_HALF_WIDTH:g}."
        )
    ends = "" if tau.low is None or tau.high is None else f", 95 % interval {tau.low:.2f} to {tau.high:.2f}"
    figure = f"tau {tau.value:.2f}{ends}, {counted(tau.groups, 'group')}"
    low = tau.value if tau.low is None else tau.low
    if low >= _GOOD:
        return f"This judge ranks attempts as {name} does ({figure})."
    if low >= _SOME:
        return f"This judge ranks attempts mostly as {name} does, with mistakes that training will feel ({figure})."
    if tau.high is not None and tau.high < _SOME:
        return f"This judge does not rank attempts as {name} does: do not train on it ({figure})."
    more = f"; about {counted(need, 'group')} would tell" if need > tau.groups else ""
    return f"How far this judge ranks attempts as {name} does is not settled ({figure}{more})."


def _right(groups: Sequence[TrajectoryGroup]) -> str:
    known = [group.judgement.p_right for group in groups if group.judgement and group.judgement.p_right is not None]
    told = "By the labels that it learnt from, the higher-scored of two attempts is the better one with probability"
    return f"{told} {fmean(known):.2f}." if known else ""


def _biases(bias: BiasReport, labels: IntervalEstimate) -> str:
    slope, length, due = bias.position_slope, bias.length_correlation, labels.value or 0.0
    found: list[str] = []
    if _shows(slope, 0.05):
        found.append(f"those shown {'late' if (slope.value or 0) > 0 else 'early'}")
    if _shows(length, 0.1, due):
        beyond = "" if labels.value is None else " beyond what the reference explains"
        found.append(f"{'long' if (length.value or 0) > due else 'short'} ones{beyond}")
    return f"It favours {' and '.join(found)}." if found else ""


def _shows(estimate: IntervalEstimate, least: float, due: float = 0.0) -> bool:
    """True if a bias differs from `due` by at least `least`, and its interval excludes `due`."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if estimate.groups < MIN_GROUPS or value is None or low is None or high is None:
        return False
    return abs(value - due) >= least and (low - due) * (high - due) > 0


def render_report(report: JudgeReport) -> str:
    """The page's HTML."""
    beside, judges = report.agreement, report.between_judges
    pairs = [pair for group in report.groups for pair in score_pairs(group, beside.reference)] if beside else []
    best = max((value for _, value in pairs), default=None)
    has_two = len({value for _, value in pairs}) == 2
    return render_page(
        "judge_page.html.j2",
        report=report,
        scores=score_histogram([(score, None) for score, _ in _scored(report.groups)]),
        reference=score_histogram([(score, value == best) for score, value in pairs]) if has_two else None,
        raters=judges.raters if judges else (),
        taus={(b, a): tau for (a, b), tau in judges.taus.items()} | dict(judges.taus) if judges else {},
    )
