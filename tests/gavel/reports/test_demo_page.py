"""The demo's page as an HTML parser reads it."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from gavel.reports.demo_page import DemoReport, SummaryRow, render_report, write_report
from gavel.reports.run_outcome import Outcome, Point
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.data.left_out import sentence_of
from tests.gavel.reports.html_page import HOSTILE, Page
from tests.judge.groups import choice, desk

REPORT = DemoReport(
    title="Returns desk",
    explanation="It acted before it looked.",
    caveat="The judge is the stand-in.",
    summary=[SummaryRow("held-out success", "0.43", "0.90")],
    outcome=Outcome(
        curve=[Point(0, 0.43, 512, {}), Point(45, 0.9, 512, {})],
        rewards={1: 0.6, 45: 0.95},
        scored=[(0.25, False), (1.0, True)],
        tau=0.91,
        statuses=Counter(),
        left_out=Counter({"identical_members": 12}),
        trained_steps=45,
        seconds={},
        before=desk("refund", judgement=Judgement(score=0.25, standard_error=0.03, explanation="It did not look.")),
        after=desk("get_order", "get_policy", "deny", judgement=Judgement(reason="no vote: the judge was away")),
    ),
    seconds={"rollouts": 12.0, "learning": 200.0},
    settings={"seed": "0", "judge": "gavel/stand-in"},
)


def test_it_shows_the_outcome_the_reasons_and_what_was_left_out():
    text = " ".join(Page(render_report(REPORT)).text.split())
    for shown in (
        "held-out success 0.43 0.90",
        "on 512 tasks",
        "0.25 ± 0.03 It did not look.",
        "no score no vote: the judge was away",
        'refund(id="7890")',
        f"{sentence_of('identical_members')} 12",
        "3 min 20 s",
        "tau between score and success is 0.91",
        "The judge is the stand-in.",
    ):
        assert shown in text


def test_hostile_text_stays_text():
    explained = Judgement(score=0.1, explanation=HOSTILE)
    liar = Trajectory(
        messages_and_choices=[
            {"role": HOSTILE, "content": HOSTILE},
            choice(HOSTILE, calls=[(HOSTILE, HOSTILE)]),
            {"role": "tool", "content": [{"type": "text", "text": HOSTILE}]},
        ],
        judgement=explained,
        status="truncated",
        status_reason=HOSTILE,
    )
    page = Page(render_report(replace(REPORT, outcome=replace(REPORT.outcome, before=liar), title=HOSTILE)))
    assert page.open == []
    assert not {"script", "img"} & set(page.tags)
    assert page.text.count(HOSTILE) == 10  # the title stands in the head too, and a call has two parts


def test_it_is_written_whole_even_with_text_that_has_no_utf8(tmp_path: Path):
    path = tmp_path / "deep" / "report.html"
    write_report(path, replace(REPORT, title="half a \ud83d pair"))
    assert "half a ? pair" in path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
