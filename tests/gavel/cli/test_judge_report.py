"""The judge's report: what the table and the page say, and what is said of files that hold nothing to report."""

import io
import re
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from gavel.cli.judge_report import print_report, render_report, report_command
from gavel.errors import GavelError
from gavel.judge.audit.bootstrap import IntervalEstimate
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import Bias, Latent, SimulatedJudge
from gavel.reports.judge import Figure, read_report
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement, Vote
from gavel.scenarios.store import TrajectoryStore
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.cli.test_cli import gavel, mistake
from tests.gavel.reports.test_demo import HOSTILE, Page
from tests.judge.groups import choice


async def judged(*names: str, groups: int = 12, orders: int = 2, metric: str = "independent_reward"):
    random = Random(0)
    table: dict[str, Latent] = {}
    made: list[TrajectoryGroup] = []
    for number in range(groups):
        ids = [f"sim-{number}x{n}" for n in range(4)]
        table |= {name: Latent(random.gauss()) for name in ids}
        members = [Trajectory(messages_and_choices=[choice(f"{n} {'.' * random.randrange(99)}")]) for n in ids]
        for name, member in zip(ids, members, strict=True):
            member.metrics = {metric: table[name].quality, "success": table[name].quality > 0}
        made.append(TrajectoryGroup(members))
    judge = Judge([SimulatedJudge(table, Bias(slope=0.5, noise=0.5), name=name) for name in names], orders=orders)
    return [await judge.score(group) for group in made]


def printed(groups: list[TrajectoryGroup], reference: str | None = None, width: int = 160) -> str:
    text = io.StringIO()
    print_report(Console(file=text, width=width), read_report(groups, reference, "judged.jsonl"))
    return text.getvalue()


def words(groups: list[TrajectoryGroup], reference: str | None = None) -> str:
    return " ".join(Page(render_report(read_report(groups, reference, "judged.jsonl"))).text.split())


async def test_a_jury_beside_its_reference_gets_every_section_in_the_table_and_on_the_page() -> None:
    groups = await judged("one", "two")
    table, page = printed(groups), words(groups)
    for text in (table, page):
        for shown in (
            "one, two",
            "12 groups · 48 of 48 members scored · 192 votes",
            "The judge beside independent_reward",
            "2 judges beside each other",
            "4 calls on a group beside each other",
            "Kendall's tau-b",
            "ICC(2,4)",
            "Krippendorff's alpha",
            "position slope",
            "only for a reference of two values",
        ):
            assert shown in text
    assert "There is no reference" not in table
    for chart in ("The judges beside each other", "What a place adds 48 calls with 4 members", "Their standard errors"):
        assert chart in page


async def test_the_figures_are_those_of_the_statistics() -> None:
    groups = await judged("one")
    report = read_report(groups, "success", "judged.jsonl")
    assert report.agreement is not None
    figures = {figure.name: figure for section in report.sections for figure in section.figures}
    assert figures["AUC"].value == f"{report.agreement.auc.value:.2f}"
    assert figures["AUC"].interval == f"{report.agreement.auc.low:.2f} to {report.agreement.auc.high:.2f}"
    assert figures["position slope"].value == f"{report.bias.position_slope.value:.3f}"
    row = next(line for line in printed(groups, "success").splitlines() if line.startswith("AUC"))
    assert row.split()[:6] == ["AUC", figures["AUC"].value, *figures["AUC"].interval.split(), "12"]


async def test_labels_are_drawn_as_bars_and_grades_as_dots() -> None:
    groups = await judged("one")
    assert "higher value" in words(groups, "success")
    assert "over the group's means" in words(groups)
    assert "The judges beside each other" not in words(groups)


async def test_without_a_reference_the_report_says_what_it_cannot_tell_and_what_there_is() -> None:
    groups = await judged("one", metric="depth")
    assert "nothing here says whether the judge is right" in printed(groups)
    assert "these members have: depth, success" in " ".join(printed(groups).split())
    assert "Kendall's tau-b" not in printed(groups)
    assert "Score and" not in words(groups)


def test_a_figure_that_rounds_to_0_has_no_sign() -> None:
    figure = Figure("slope", IntervalEstimate(-1e-17, -4e-4, 4e-4, 12), "", decimals=3)
    assert (figure.value, figure.interval) == ("0.000", "0.000 to 0.000")


async def test_few_groups_and_single_calls_are_pointed_out() -> None:
    text = printed(await judged("one", groups=3, orders=1))
    assert "fewer than 10 groups are too narrow" in text
    assert "No group was judged twice" in text


async def test_members_without_a_score_are_counted_by_reason() -> None:
    groups = await judged("one", groups=2)
    groups[0].trajectories.append(Trajectory(judgement=Judgement(reason="no vote: the judge was away")))
    groups[1].trajectories += [Trajectory(judgement=Judgement(reason="no vote: the judge was away")), Trajectory()]
    assert "8 of 11 members scored" in printed(groups)
    assert "2 unscored: no vote: the judge was away" in printed(groups)
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
    def member(score: float, slot: int) -> Trajectory:
        votes = [
            Vote(score=score, slot=slot, order=0, model=HOSTILE),
            Vote(score=score, slot=slot, order=1, model="\x1b[2Jother"),
        ]
        return Trajectory(judgement=Judgement(score=score, votes=votes), metrics={HOSTILE: score})

    group = TrajectoryGroup([member(0.2, 0), member(0.7, 1), Trajectory(judgement=Judgement(reason=HOSTILE))])
    page = Page(render_report(read_report([group], HOSTILE, HOSTILE)))
    assert page.open == []
    assert not {"script", "img"} & set(page.tags)
    assert HOSTILE in page.text
    assert "\x1b" not in printed([group], HOSTILE)


async def test_the_command_prints_and_writes_beside_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TrajectoryStore(tmp_path / "judged.jsonl.zst")
    store.extend(await judged("one", groups=2))
    report_command(store.path, None, None, None)
    assert (tmp_path / "judged.report.html").is_file()
    assert "judged.report.html" in capsys.readouterr().out.replace("\n", "")
    report_command(store.path, "success", None, tmp_path / "deep" / "page.html")
    assert "The judge beside success" in (tmp_path / "deep" / "page.html").read_text()


async def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "judged.jsonl.zst")
    store.extend(await judged("one", groups=2))
    with pytest.raises(GavelError, match="cannot be written"):
        report_command(store.path, None, None, tmp_path)


async def test_a_reference_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(JudgeError, match="no judged member has the reference accuracy") as caught:
        read_report(await judged("one", groups=2), "accuracy", "judged.jsonl")
    assert "independent_reward, success" in (caught.value.remedy or "")


def test_the_command_line_tells_what_to_do_with_a_file_that_was_not_judged(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('[{"role": "user", "content": "hello"}]\n')
    assert "gavel score" in mistake("judge", "report", "rows.jsonl", cwd=tmp_path)
    assert "none.jsonl cannot be read" in mistake("judge", "report", "none.jsonl", cwd=tmp_path)
    assert "report" in gavel("judge", "--help", cwd=tmp_path).stdout
