"""What pages are made of, and what a run directory tells: figures, its outcome in words, its page."""

import fcntl
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.base.errors import GavelError
from gavel.reports.charts import BOTTOM, LEFT, RIGHT, TOP, CurvePoint, curves_chart, score_histogram
from gavel.reports.page import write_file
from gavel.reports.run_figures import cost_of, read_run, step_rows
from gavel.reports.run_outcome import before_and_after, outcome_in_words, outcome_of_run
from gavel.reports.run_page import render_run, write_run_report
from gavel.reports.transcript import pretty_json, shown_text, transcribe
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.made import HOSTILE, made_run, sampled, shown, store
from tests.judge.groups import choice, desk


def test_a_cost_that_a_step_does_not_tell_is_not_known(tmp_path: Path) -> None:
    rows = read_run(made_run(tmp_path / "run")).rows
    assert cost_of(rows) == pytest.approx(0.75)
    rows[1] |= {"judge/calls": 64, "judge/cost_usd": 1.0}  # held-out attempts were compared
    assert cost_of(rows) == pytest.approx(1.75)
    del rows[2]["judge/cost_usd"]
    assert cost_of(rows) is None


def test_a_run_has_a_row_for_each_step_and_each_evaluation_and_none_for_what_a_program_added(tmp_path: Path) -> None:
    rows = [step_row(1, 2, reward=0.9), {"split": "train", "step": 1, "my_metric": 0.5, "reward": 0.1}]
    assert outcome_in_words(rows) == ["1 step trained; no held-out tasks were measured since."]
    assert step_rows(rows)[0].figures["reward"] == 0.9
    found = step_rows(read_run(made_run(tmp_path / "run", judged=False)).rows)
    assert [(row.step, row.held_out) for row in found] == [(3, 0.9), (2, None), (1, None), (0, 0.5)]
    assert found[1].figures == {"success": 0.5, "loss": -0.1}
    assert found[1].left_out == [(2, "groups whose members all have the same score")]
    assert found[3].left_out == []


def member(success: bool, task: int = 1) -> Trajectory:
    metadata: Any = {"task": {"id": f"{task}"}}
    return Trajectory(messages_and_choices=[choice("x")], metrics={"success": success}, metadata=metadata)


def evaluation(step: int, success: float) -> dict[str, Any]:
    return {"split": "held_out", "step": step, "time": 0.0, "success": success, "trajectories": 2, "note": "text"}


def step_row(step: int, trained: int, **figures: float) -> dict[str, Any]:
    return {"split": "train", "step": step, "time": 0.0, "groups_trained": trained, **figures}


def test_the_pair_that_is_shown_is_a_failure_that_became_a_success(tmp_path: Path) -> None:
    for step, successes in ((0, (True, False)), (2, (True, True))):
        attempts = [TrajectoryGroup([member(ok, task)]) for task, ok in enumerate(successes)]
        store(tmp_path, step, "held_out", run="").extend(attempts)
    shown = [(title, each.metadata["task"], each.metrics["success"]) for title, each in before_and_after(tmp_path)]
    assert shown == [("after step 0", {"id": "1"}, False), ("after step 2", {"id": "1"}, True)]


def told(*rows: dict[str, Any]) -> str:
    return " ".join(outcome_in_words(rows, max_tokens=48, scenario="mine.py"))


def test_a_run_that_trained_nothing_says_so_first_with_the_reason_and_what_to_try() -> None:
    idle = {"left_out/no_signal": 15, "left_out/identical_members": 1, "cut": 1.0, "trajectories": 128.0}
    said = told(evaluation(0, 0.5), step_row(1, 0, **idle), step_row(2, 0, **idle), evaluation(2, 0.5))
    assert said.startswith("Nothing was trained in 2 of 2 steps: the members of every group scored alike")
    assert "100 % of the replies were cut at 48 tokens" in said
    assert "--fresh --max-tokens 192" in said, "the run is pinned to its settings"
    assert "gavel check mine.py" in said
    assert "gavel check 'my own.py'" in " ".join(outcome_in_words([step_row(1, 0)], scenario="my own.py"))
    assert "`gavel view`" in " ".join(outcome_in_words([step_row(1, 0)])), "a program's run has no scenario to check"
    unscored = told(step_row(1, 0, **{"left_out/unscored": 8}))
    assert "8 members without a score" in unscored
    assert "alike" not in unscored
    rows = [step_row(1, 0, **idle)]
    constant = " ".join(outcome_in_words(rows, max_tokens=48, scenario="mine.py", judges=["gavel/constant"]))
    assert "--fresh --judge" in constant
    assert not any(word in constant for word in ("gavel check", "--max-tokens")), "neither can help"
    for score in (0.4, 1.0):  # where all was right, it is not told
        some = told(step_row(1, 1), step_row(2, 0, **{"left_out/no_signal": 16, "judge_score": score}))
        assert ("Nothing was trained in 1 of 2" in some) == (score < 1)


def test_a_gain_is_told_only_beyond_its_interval() -> None:
    def run(after: float, tasks: int) -> str:
        rows = [evaluation(0, 0.22), step_row(1, 1), evaluation(9, after)]
        return told(*(row | {"trajectories": tasks} if row["split"] == "held_out" else row for row in rows))

    assert run(0.71, 96).startswith("It learned: held-out success 0.22 → 0.71 (+0.49 ± ")
    assert run(0.30, 16).startswith("It cannot be told")
    assert run(0.02, 96).startswith("It got worse")
    assert run(1.0, 7).startswith("It cannot be told")
    few = [{"split": "held_out", "step": step, "trajectories": 2, "wins/base": 1.0} for step in (0, 1)]
    assert told(step_row(1, 1), *few).startswith("It cannot be told")
    unsure = [evaluation(0, 0.5), step_row(1, 1), evaluation(9, 0.5)]
    assert "--set" in outcome_in_words(unsure)[1]
    assert outcome_in_words(unsure, settable=False)[1] == "More --steps may show a gain."  # `gavel demo` has no --set


def test_wins_over_the_base_imitation_and_an_unfinished_run_have_an_outcome_too() -> None:
    row = {"split": "held_out", "trajectories": 64}
    rows = [row | {"step": 0, "wins/base": 0.5}, row | {"step": 4, "wins/base": 0.9}]
    assert told(step_row(1, 1), *rows).startswith("It learned: its held-out attempts beat the base's at 0.90")
    imitated = [{"split": "sft", "step": step, "loss": loss} for step, loss in ((1, 2.0), (2, 0.5))]
    assert told(*imitated).startswith("It learned to imitate")
    assert told(evaluation(0, 0.5)) == "Nothing was trained yet."
    assert "1 step trained" in told(evaluation(0, 0.5), step_row(1, 1))


def test_a_run_that_stopped_early_says_where_and_a_judge_that_failed_says_why(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[loop]\nsteps = 9\n")
    (tmp_path / "experiment.json").write_text(
        '{"scenario": "mine.py", "judge": ["gavel/constant"], "loop": {"max_tokens": 48}}'
    )
    rows = [evaluation(0, 0.5), step_row(2, 0, cut=1.0, **{"left_out/unscored": 8})]
    told = outcome_of_run(tmp_path, rows, {"no vote: refused": 7, "other": 1})
    assert told[0].startswith("Interrupted after step 2 of 9")
    assert "7 members got no score: no vote: refused" in told
    assert any("cut at 48 tokens" in line for line in told)
    assert any("--judge" in line for line in told)
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "step 2 of 9" in outcome_of_run(tmp_path, rows)[-1]
    finished = outcome_of_run(tmp_path, [*rows, evaluation(9, 0.5)])
    assert not any(word in line for line in finished for word in ("Interrupted", "goes on"))


def test_a_run_of_a_file_is_advised_by_that_file(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "desk" / "one"
    run.mkdir(parents=True)
    (tmp_path / "mine.py").touch()
    for typed, advised in ("../../../mine.py:desk", "mine.py:desk"), ("returns_desk", "returns_desk"):
        (run / "run.toml").write_text(f'scenario = "{typed}"\n')
        assert any(f"`gavel check {advised}`" in line for line in outcome_of_run(run, [step_row(1, 0)]))


def test_the_page_of_a_run_that_goes_on_tells_its_figures_and_hostile_text_stays_text(tmp_path: Path) -> None:
    with pytest.raises(GavelError, match=r"is no run"):
        write_run_report(tmp_path)
    page = shown(render_run(made_run(tmp_path / "desk" / "one")))
    assert page.index("It learned: held-out success 0.50 → 0.90") < page.index("After step 3")
    assert "6 groups whose members all have the same score" in page
    assert "0.7500 USD" in page
    for title in ("Held-out", "Loss", "Judge and truth", "Judge's scores by step", "flag: contentless", HOSTILE):
        assert title in page
    assert "Entropy" not in page  # this run has none


POINTS = st.floats(-1e6, 1e6).map(CurvePoint)


@given(st.dictionaries(st.text(max_size=3), st.dictionaries(st.integers(0, 500), POINTS), max_size=8))
def test_every_dot_is_inside_and_bands_are_clipped_to_the_axis(curves: dict[str, dict[int, CurvePoint]]) -> None:
    chart = curves_chart(curves)
    assert (chart is None) == (not any(curves.values()))
    for curve in chart.curves if chart else ():
        for x, y, _ in curve.dots:
            assert LEFT - 1e-6 <= x <= RIGHT + 1e-6
            assert TOP - 1e-6 <= y <= BOTTOM + 1e-6
    banded: Any = curves_chart({"a": {0: CurvePoint(0.5, -3, 3), 1: CurvePoint(0.6, 0.5, 0.7)}}, low=0, high=1)
    assert {(LEFT, TOP), (LEFT, BOTTOM)} <= set(banded.curves[0].band)


def test_each_tenth_of_the_scores_tells_how_many_succeeded():
    chart = score_histogram([(0.05, False), (0.3, False), (0.3, True), (1.0, True), (0.95, True), (0.9, False)])
    assert [bar.label for bar in chart.bars] == ["0%", "", "", "50%", "", "", "", "", "", "67%"]
    assert chart.bars[9].title == "score 0.9 to 1.0: 2 succeeded, 1 failed"
    succeeded, failed = chart.bars[9].segments
    assert failed.y < succeeded.y < BOTTOM
    assert succeeded.y + succeeded.height == pytest.approx(BOTTOM)
    assert all(segment.height == 0 for bar in score_histogram([]).bars for segment in bar.segments)


@pytest.mark.parametrize("count", [1, 96, 97, 5000])
def test_a_strip_covers_all_tokens_and_shows_the_least_likely_of_each_block(count):
    logprobs = tuple(-9.0 if at == count // 2 else -0.01 for at in range(count))
    strip: Any = transcribe(Trajectory(messages_and_choices=[sampled("x", logprobs=logprobs)]))[0].rounds[0][0].strip
    assert strip.tokens == count
    assert len(strip.blocks) <= 96
    assert sum(width for _, width, _ in strip.blocks) == pytest.approx(100, abs=0.2)
    assert [heat for *_, heat in strip.blocks].count(4) == 1
    assert strip.lowest == -9.0


def test_a_turn_that_ran_out_of_tokens_and_one_without_logprobs_are_marked():
    out_of_tokens = sampled("x", finish_reason="length", logprobs=())
    for item, marks in ((out_of_tokens, (True, True)), ({"role": "assistant", "content": "x"}, (False, False))):
        turn = transcribe(Trajectory(messages_and_choices=[item]))[0].rounds[0][0]
        assert ((turn.cut, turn.sampled), turn.strip) == (marks, None)


def test_contents_and_calls_of_every_kind_are_text():
    assert shown_text([{"type": "text", "text": "a"}, {"type": "image_url"}, 3]) == "a\n[image_url]\n3"
    assert shown_text({"a": 1}) == '{"a": 1}'
    assert pretty_json('{"a": "ü"}') == '{\n  "a": "ü"\n}'
    assert pretty_json("[" * 100_000) == "[" * 100_000
    calls = [("refund", '{"id": "é", "n": 2}'), ("refund", "not json"), ("stop", "")]
    shown = transcribe(Trajectory(messages_and_choices=[choice(calls=calls)]))[0].turns[0].calls
    assert [*map(str, shown)] == ['refund(id="é", n=2)', "refund(not json)", "stop()"]


def test_the_page_shows_a_task_before_and_after_the_judge_beside_the_truth_and_what_a_demo_says(tmp_path: Path) -> None:
    run = made_run(tmp_path / "desk" / "one")
    (run / "summary.json").write_text('{"about": ["A tiny policy."]}')
    for file in (run / "trajectories" / "held_out").glob("*"):
        file.unlink()
    liar = member(False, 2)
    liar.messages_and_choices = [
        {"role": HOSTILE, "content": HOSTILE},
        choice(HOSTILE, calls=[(HOSTILE, HOSTILE)]),
        {"role": "tool", "content": [{"type": "text", "text": HOSTILE}]},
    ]
    liar.judgement = Judgement(score=0.25, standard_error=0.03, explanation=HOSTILE)
    liar.status, liar.status_reason = "truncated", HOSTILE
    after = desk("get_order", "deny", metrics={"success": True}, metadata={"task": {"id": "2"}})
    store(run, 0, "held_out", run="").extend(TrajectoryGroup([each]) for each in (member(True), liar))
    assert "before and after" not in shown(render_run(run))
    before = shown(render_run(run)).count(HOSTILE)
    store(run, 3, "held_out", run="").extend(TrajectoryGroup([each]) for each in (Trajectory(), member(True), after))
    text = shown(render_run(run))
    assert text.count(HOSTILE) - before == 8  # a call has two parts
    for part in ("A tiny policy.", "0.25 ± 0.03", "after step 3 not judged", "get_order(", "tau between score and"):
        assert part in text


def test_it_is_written_whole_even_with_text_that_has_no_utf8(tmp_path: Path):
    path = tmp_path / "deep" / "report.html"
    write_file(path, "half a \ud83d pair")
    assert "half a ? pair" in path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
