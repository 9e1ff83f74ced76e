"""The figures and notes of the judge's report."""

import pytest

from gavel.judge.audit.bootstrap import IntervalEstimate
from gavel.judge.errors import JudgeError
from gavel.reports.judge_trust import Figure, read_report
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.judged_groups import judged


def notes(groups: list[TrajectoryGroup]) -> str:
    return " ".join(read_report(groups, None, "judged.jsonl").notes)


async def test_the_figures_are_those_of_the_statistics() -> None:
    groups = await judged("one")
    report = read_report(groups, "success", "judged.jsonl")
    assert report.agreement is not None
    figures = {figure.name: figure for section in report.sections for figure in section.figures}
    assert figures["AUC"].value == f"{report.agreement.auc.value:.2f}"
    assert figures["AUC"].interval == f"{report.agreement.auc.low:.2f} to {report.agreement.auc.high:.2f}"
    assert figures["position slope"].value == f"{report.bias.position_slope.value:.3f}"


def test_a_figure_that_rounds_to_0_has_no_sign() -> None:
    figure = Figure("slope", IntervalEstimate(-1e-17, -4e-4, 4e-4, 12), "", decimals=3)
    assert (figure.value, figure.interval) == ("0.000", "0.000 to 0.000")


async def test_without_a_reference_the_notes_say_so_and_name_the_metrics_there_are() -> None:
    report = read_report(await judged("one", metric="depth"), None, "judged.jsonl")
    assert "nothing here says whether the judge is right" in " ".join(report.notes)
    assert "these members have: depth, success" in " ".join(report.notes)
    assert report.agreement is None
    assert "Kendall's tau-b" not in {figure.name for section in report.sections for figure in section.figures}


async def test_few_groups_and_single_calls_are_pointed_out() -> None:
    text = notes(await judged("one", groups=3, orders=1))
    assert "fewer than 10 groups are too narrow" in text
    assert "No group was judged twice" in text


async def test_members_without_a_score_are_counted_by_reason() -> None:
    groups = await judged("one", groups=2)
    groups[0].trajectories.append(Trajectory(judgement=Judgement(reason="no vote: the judge was away")))
    groups[1].trajectories += [Trajectory(judgement=Judgement(reason="no vote: the judge was away")), Trajectory()]
    report = read_report(groups, None, "judged.jsonl")
    assert "8 of 11 members scored" in report.facts
    assert report.unscored == {"no vote: the judge was away": 2, "not judged": 1}


async def test_a_reference_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(JudgeError, match="no judged member has the reference accuracy") as caught:
        read_report(await judged("one", groups=2), "accuracy", "judged.jsonl")
    assert "independent_reward, success" in (caught.value.remedy or "")
