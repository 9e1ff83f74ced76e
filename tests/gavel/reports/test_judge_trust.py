"""The figures and notes of the judge's report."""

import re

import pytest

from gavel.reports.judge_trust import disagreements, groups_needed, read_report, render_report
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.html_page import HOSTILE, shown
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
    figures = [figure for each in report.sections.values() for figure in each]
    assert "0.00 to 0.00" not in {figure.interval for figure in figures}
    assert {figure.interval for figure in figures} <= {"–", "needs 10 groups"}
    assert "Too few groups for a verdict: 3 groups" in report.verdict
    assert f"about {groups_needed([])} give" in report.verdict
    assert "judge at least 7 more" in " ".join(report.notes)


def test_the_groups_of_most_disagreement_show_the_two_members_that_tell_it() -> None:
    groups = [made(RIGHT), made(WRONG), made([(0.4, 0.0), (0.3, 1.0), (0.9, 2.0)])]
    first, second = disagreements(groups, "truth")
    assert (first.number, first.scores, first.values, first.tau) == (2, (0.9, 0.1), (0.0, 1.0), pytest.approx(-1))
    assert (second.number, second.values) == (3, (0.0, 1.0))
    page = words(groups, "truth")
    assert "group 2, tau -1.00" in page
    assert HOSTILE in page


async def test_a_position_bias_is_named() -> None:
    assert "shown early" in said(await judged("one", groups=30), "success")


def words(groups: list[TrajectoryGroup], reference: str | None = None) -> str:
    """The text of the page, which is whole and loads nothing."""
    html = render_report(read_report(groups, reference, "judged.jsonl"))
    assert not re.search(r"url\(|@import|https?://|href=", html)
    assert "nan" not in html.lower().replace("nano", "")
    return shown(html)


async def test_the_page_has_the_sections_and_charts_that_its_groups_can_fill() -> None:
    page = words(await judged("one", "two"))
    for part in ("192 votes", "Agreement between 4 calls", "ICC(2,1)", "Agreement between judges"):
        assert part in page
    one = words(await judged("one"), "success")
    assert "higher value" in one
    assert "Agreement between judges" not in one
    assert "Score and" not in words(await judged("one", metric="depth"))
    assert words([TrajectoryGroup([Trajectory(judgement=Judgement(score=score)) for score in (0.2, 0.8)])])
