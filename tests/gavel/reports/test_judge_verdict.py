"""The verdict says no more than the groups show, and the groups of most disagreement come with both members."""

import pytest

from gavel.reports.judge_page import render_report
from gavel.reports.judge_trust import read_report
from gavel.reports.judge_verdict import disagreements, groups_needed
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.html_page import HOSTILE, Page
from tests.gavel.reports.judged_groups import judged
from tests.judge.groups import choice


def made(pairs: list[tuple[float, float]]) -> TrajectoryGroup:
    """A group of (score, truth)."""
    return TrajectoryGroup(
        Trajectory(
            messages_and_choices=[choice(f"{HOSTILE} {score}")],
            judgement=Judgement(score=score, explanation=HOSTILE),
            metrics={"truth": truth},
        )
        for score, truth in pairs
    )


RIGHT, WRONG = [(0.1, 0.0), (0.5, 0.5), (0.9, 1.0)], [(0.9, 0.0), (0.5, 0.5), (0.1, 1.0)]


def said(groups: list[TrajectoryGroup], reference: str | None = "truth") -> str:
    return read_report(groups, reference, "x").verdict


def test_a_judge_is_called_good_or_bad_only_where_the_interval_says_so() -> None:
    assert said([made(RIGHT) for _ in range(12)]).startswith("This judge ranks attempts as truth does (tau 1.00")
    assert "do not train on it" in said([made(WRONG) for _ in range(12)])
    mixed = said([made(RIGHT) for _ in range(9)] + [made(WRONG) for _ in range(3)])
    assert "not settled" in mixed
    assert "groups would tell" in mixed
    assert "cannot be said without a reference" in said([made(RIGHT)], None)


def test_three_groups_give_no_interval_and_say_how_many_are_needed() -> None:
    report = read_report([made(WRONG) for _ in range(3)], "truth", "x")
    figures = [figure for section in report.sections for figure in section.figures]
    assert "0.00 to 0.00" not in {figure.interval for figure in figures}
    assert {figure.interval for figure in figures} <= {"–", "needs 10 groups"}
    assert "Too few groups for a verdict: 3 groups" in report.verdict
    assert f"about {groups_needed([])} give" in report.verdict
    assert "judge at least 7 more" in " ".join(report.notes)


def test_equal_groups_are_no_certainty() -> None:
    report = read_report([made(RIGHT) for _ in range(12)], "truth", "x")
    assert report.sections[0].figures[0].interval == "all groups alike"


def test_the_groups_of_most_disagreement_show_the_two_members_that_tell_it() -> None:
    groups = [made(RIGHT), made(WRONG), made([(0.4, 0.0), (0.3, 1.0), (0.9, 2.0)])]
    first, second = disagreements(groups, "truth")
    assert (first.number, first.scores, first.values) == (2, (0.9, 0.1), (0.0, 1.0))
    assert (second.number, second.values) == (3, (0.0, 1.0))
    assert first.tau == pytest.approx(-1)
    page = Page(render_report(read_report(groups, "truth", "x")))
    assert page.open == []
    assert "script" not in page.tags
    assert "group 2, tau -1.00" in page.text
    assert HOSTILE in page.text


async def test_a_position_bias_is_named() -> None:
    assert "shown early" in said(await judged("one", groups=30), "success")
