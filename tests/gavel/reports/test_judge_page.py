"""The judge's page as an HTML parser reads it."""

import re

from gavel.reports.judge_page import render_report
from gavel.reports.judge_trust import read_report
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement, Vote
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.html_page import HOSTILE, Page
from tests.gavel.reports.judged_groups import judged


def words(groups: list[TrajectoryGroup], reference: str | None = None) -> str:
    return " ".join(Page(render_report(read_report(groups, reference, "judged.jsonl"))).text.split())


async def test_several_judges_and_a_reference_get_every_section_and_chart() -> None:
    page = words(await judged("one", "two"))
    for shown in (
        "one, two on judged.jsonl",
        "12 groups · 48 of 48 members scored · 192 votes",
        "Agreement with independent_reward",
        "Agreement between 2 judges",
        "Agreement between 4 calls on one group",
        "Kendall's tau-b",
        "ICC(2,4)",
        "Krippendorff's alpha",
        "position slope",
        "needs a reference of two values",
        "Agreement between judges",
        "Mean score by position 48 calls with 4 members",
        "Standard errors of the scores",
    ):
        assert shown in page


async def test_a_reference_of_two_values_is_drawn_as_bars_and_one_of_more_as_dots() -> None:
    groups = await judged("one")
    assert "higher value" in words(groups, "success")
    assert "less the group's mean" in words(groups)
    assert "Agreement between judges" not in words(groups)


async def test_without_a_reference_there_is_no_chart_of_one() -> None:
    assert "Score and" not in words(await judged("one", metric="depth"))


async def test_members_without_a_score_are_listed_by_reason() -> None:
    groups = await judged("one", groups=2)
    groups[0].trajectories.append(Trajectory())
    assert "not judged 1" in words(groups)


async def test_a_page_of_any_judged_file_is_whole_and_loads_nothing() -> None:
    scored_elsewhere = TrajectoryGroup([Trajectory(judgement=Judgement(score=score)) for score in (0.2, 0.8)])
    for groups in (await judged("one", "two"), await judged("one", groups=1, orders=1), [scored_elsewhere]):
        html = render_report(read_report(groups, None, "judged.jsonl"))
        page = Page(html)
        assert page.open == []
        assert "script" not in page.tags
        assert not {name for name, _ in page.attributes} & {"src", "href", "srcset", "action"}
        assert not re.search(r"url\(|@import|https?://", html)
        assert "nan" not in html.lower().replace("nano", "")


def test_hostile_names_and_reasons_stay_text() -> None:
    def member(score: float, position: int) -> Trajectory:
        votes = [Vote(score=score, position=position, order=order, model=HOSTILE) for order in (0, 1)]
        return Trajectory(judgement=Judgement(score=score, votes=votes), metrics={HOSTILE: score})

    group = TrajectoryGroup([member(0.2, 0), member(0.7, 1), Trajectory(judgement=Judgement(reason=HOSTILE))])
    page = Page(render_report(read_report([group], HOSTILE, HOSTILE)))
    assert page.open == []
    assert not {"script", "img"} & set(page.tags)
    assert HOSTILE in page.text
