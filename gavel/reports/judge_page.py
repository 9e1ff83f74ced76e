"""A judge's report as one HTML page; every figure in it comes from `gavel.reports.judge_trust`."""

from gavel.judge.audit.agreement import center
from gavel.reports.charts import Chart, histogram, outcome_histogram, position_chart, scatter_chart
from gavel.reports.judge_trust import JudgeReport
from gavel.reports.page import render_page

_MAX_DOTS = 800
"""More dots make the page heavier and the chart no clearer."""


def render_report(report: JudgeReport) -> str:
    """The page's HTML."""
    scores = [judgement.score for judgement in report.judgements if judgement.score is not None]
    errors = [judgement.standard_error for judgement in report.judgements if judgement.standard_error is not None]
    # Means of positions are comparable only between groups of one size; the size with the most ballots is drawn.
    by_size = report.bias.position_means
    size = max(by_size, key=lambda members: by_size[members].ballots, default=None)
    return render_page(
        "judge_page.html.j2",
        report=report,
        scores=histogram(scores, 1.0, 1),
        errors=histogram(errors, _round_up(max(errors)), 2) if errors else None,
        position_size=size,
        position_calls=0 if size is None else by_size[size].ballots,
        positions=None if size is None else position_chart(by_size[size].means),
        reference=_reference_chart(report),
        tau_matrix=_tau_matrix(report),
    )


def _round_up(value: float) -> float:
    """To a multiple of 0.1, so that the edges of ten bins are whole hundredths."""
    return max(0.1, -(-round(value * 100) // 10) / 10)


def _reference_chart(report: JudgeReport) -> Chart | None:
    """Bars for a reference of two values; dots of the group-centerd score and reference for one of more."""
    values = {value for pairs in report.pairs for _, value in pairs}
    if len(values) < 2:
        return None
    if len(values) == 2:
        return outcome_histogram([(score, value == max(values)) for pairs in report.pairs for score, value in pairs])
    dots: list[tuple[float, float]] = []
    for pairs in report.pairs:
        if pairs:
            scores, references = zip(*pairs, strict=True)
            dots += zip(center(scores), center(references), strict=True)
    stride = -(-len(dots) // _MAX_DOTS)
    return scatter_chart(dots[::stride])


def _tau_matrix(report: JudgeReport) -> list[tuple[str, list[float | None]]]:
    """Kendall's tau of each judge (row) with each judge; None where it is not defined; empty for one judge."""
    if report.between_judges is None:
        return []
    judges, pairs = report.between_judges.raters, report.between_judges.pairs
    taus = {pair: agreement.tau.value for pair, agreement in pairs.items()}

    def tau(one: str, other: str) -> float | None:
        return 1.0 if one == other else taus.get((one, other), taus.get((other, one)))

    return [(one, [tau(one, other) for other in judges]) for one in judges]
