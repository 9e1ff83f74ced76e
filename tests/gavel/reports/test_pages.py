"""What pages are made of: charts, transcripts, and the demo's page as an HTML parser reads it."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.cli.demo import RETURNS_DESK, DemoRun, render_report
from gavel.reports.charts import BOTTOM, LEFT, RIGHT, TOP, CurvePoint, curves_chart, outcome_histogram
from gavel.reports.page import write_page
from gavel.reports.run_outcome import Outcome, Point
from gavel.reports.transcript import pretty_json, shown_text, transcribe
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.data.left_out import sentence_of
from gavel.trainer.run_config import RunConfig
from tests.gavel.reports.html_page import HOSTILE, shown
from tests.gavel.reports.viewer.stored import sampled
from tests.judge.groups import choice, desk

POINTS = st.floats(-1e6, 1e6).map(CurvePoint)


@given(st.dictionaries(st.text(max_size=3), st.dictionaries(st.integers(0, 500), POINTS), max_size=8))
def test_every_dot_is_inside(curves: dict[str, dict[int, CurvePoint]]) -> None:
    chart = curves_chart(curves)
    assert (chart is None) == (not any(curves.values()))
    for curve in chart.curves if chart else ():
        for x, y, _ in curve.dots:
            assert LEFT - 1e-6 <= x <= RIGHT + 1e-6
            assert TOP - 1e-6 <= y <= BOTTOM + 1e-6


def test_bands_are_clipped_to_the_axis() -> None:
    chart = curves_chart({"a": {0: CurvePoint(0.5, -3, 3), 1: CurvePoint(0.6, 0.5, 0.7)}}, low=0, high=1)
    assert chart is not None
    assert {(LEFT, TOP), (LEFT, BOTTOM)} <= set(chart.curves[0].band)


def test_each_tenth_of_the_scores_tells_how_many_succeeded():
    chart = outcome_histogram([(0.05, False), (0.3, False), (0.3, True), (1.0, True), (0.95, True), (0.9, False)])
    assert [bar.label for bar in chart.bars] == ["0%", "", "", "50%", "", "", "", "", "", "67%"]
    assert chart.bars[9].title == "score 0.9 to 1.0: 2 succeeded, 1 failed"
    succeeded, failed = chart.bars[9].segments
    assert failed.y < succeeded.y < BOTTOM
    assert succeeded.y + succeeded.height == pytest.approx(BOTTOM)
    assert all(segment.height == 0 for bar in outcome_histogram([]).bars for segment in bar.segments)


@pytest.mark.parametrize("count", [1, 96, 97, 5000])
def test_a_strip_covers_all_tokens_and_shows_the_least_likely_of_each_block(count):
    logprobs = tuple(-9.0 if at == count // 2 else -0.01 for at in range(count))
    strip = transcribe(Trajectory(messages_and_choices=[sampled("x", logprobs=logprobs)]))[0].rounds[0][0].strip
    assert strip is not None
    assert strip.tokens == count
    assert len(strip.blocks) <= 96
    assert sum(width for _, width, _ in strip.blocks) == pytest.approx(100, abs=0.2)
    assert [heat for *_, heat in strip.blocks].count(4) == 1
    assert strip.lowest == -9.0


def test_a_turn_that_ran_out_of_tokens_and_one_without_logprobs_are_marked():
    out_of_tokens = sampled("x", finish_reason="length", logprobs=())
    cut = transcribe(Trajectory(messages_and_choices=[out_of_tokens]))[0].rounds[0][0]
    assert (cut.cut, cut.strip, cut.sampled) == (True, None, True)
    plain = transcribe(Trajectory(messages_and_choices=[{"role": "assistant", "content": "x"}]))[0].rounds[0][0]
    assert (plain.sampled, plain.cut) == (False, False)


def test_contents_and_calls_of_every_kind_are_text():
    assert shown_text([{"type": "text", "text": "a"}, {"type": "image_url"}, 3]) == "a\n[image_url]\n3"
    assert shown_text({"a": 1}) == '{"a": 1}'
    assert pretty_json('{"a": "ü"}') == '{\n  "a": "ü"\n}'
    assert pretty_json("[" * 100_000) == "[" * 100_000
    calls = [("refund", '{"id": "é", "n": 2}'), ("refund", "not json"), ("stop", "")]
    shown = transcribe(Trajectory(messages_and_choices=[choice(calls=calls)]))[0].turns[0].calls
    assert [*map(str, shown)] == ['refund(id="é", n=2)', "refund(not json)", "stop()"]


OUTCOME = Outcome(
    curve=[
        Point(0, 0.43, 512, {"looked_before_acting": 0.31, "turns": 3.0}),
        Point(45, 0.9, 512, {"looked_before_acting": 0.97, "turns": 3.5}),
    ],
    rewards={1: 0.6, 45: 0.95},
    scored=[(0.25, False), (1.0, True)],
    tau=0.91,
    statuses=Counter(),
    left_out=Counter({"identical_members": 12}),
    trained_steps=45,
    seconds={},
    before=desk("refund", judgement=Judgement(score=0.25, standard_error=0.03, explanation="It did not look.")),
    after=desk("get_order", "get_policy", "deny", judgement=Judgement(reason="no vote: the judge was away")),
)


def rendered(outcome: Outcome = OUTCOME, told: str = "It acted before it looked.") -> str:
    config = RunConfig.model_validate({"scenario": "returns_desk", "judge": {"models": "constant"}})
    return render_report(DemoRun(RETURNS_DESK, config), outcome, told, {"rollouts": 12.0, "learning": 200.0})


def test_it_shows_the_outcome_the_reasons_and_what_was_left_out():
    text = shown(rendered())
    for part in (
        "held-out success 0.43 ± 0.04 0.90 ± 0.03",
        "looked before acting 0.31 0.97",
        "on 512 tasks",
        "0.25 ± 0.03 It did not look.",
        "no score no vote: the judge was away",
        'refund(id="7890")',
        f"{sentence_of('identical_members')} 12",
        "3 min 20 s",
        "tau between score and success is 0.91",
        "It was constant.",
    ):
        assert part in text


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
    text = shown(rendered(replace(OUTCOME, before=liar), HOSTILE))
    assert text.count(HOSTILE) == 9  # a call has two parts


def test_it_is_written_whole_even_with_text_that_has_no_utf8(tmp_path: Path):
    path = tmp_path / "deep" / "report.html"
    write_page(path, rendered(told="half a \ud83d pair"))
    assert "half a ? pair" in path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
