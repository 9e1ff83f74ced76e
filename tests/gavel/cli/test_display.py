"""A training run in the terminal: one line a step when piped, with counts, cost and the time left, at 80 columns."""

import io

from rich.console import Console

from gavel.cli.terminal import waited_for
from gavel.cli.training import RunDisplay
from gavel.judge.judge import Judge
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.loop.evaluation import Evaluation
from gavel.trainer.loop.train_loop import EVALUATING, StepReport


def report(step: int, score: float = 0.5) -> StepReport:
    result = TrainResult(step=step, trained=True, metrics={"judge_score": score})
    return StepReport(result, [], rollout=2.0, judge=1.0, train=3.0, whole=60.0)


def printed(steps: int = 4, every: int = 2, judge: Judge | None = None, *, success: bool = True) -> list[str]:
    """The lines of a whole run on a console that is no terminal."""
    text = io.StringIO()
    display = RunDisplay(Console(file=text, width=80), steps, judge=judge)
    with display.shown():
        for step in range(steps + 1):
            if step % every == 0:
                display.doing(EVALUATING)
                display.advanced(1, 4)
                measures = {"success": step / steps} if success else {}
                display.evaluated(step, Evaluation(4, measures, []))
            if step < steps:
                display.doing("rollouts and judging")
                display.doing("learning")
                display.stepped(report(step + 1))
    return text.getvalue().splitlines()


def test_every_step_has_one_line_of_at_most_80_characters() -> None:
    for lines in (printed(), printed(every=9), printed(success=False), printed(judge=Judge("openai/gpt-5-mini"))):
        assert [line.split()[1] for line in lines] == ["0/4", "1/4", "2/4", "3/4", "4/4"]
        assert max(map(len, lines)) <= 80
        assert "\x1b" not in "".join(lines)


def test_a_line_has_success_score_time_left_and_cost() -> None:
    line = printed(judge=Judge("openai/gpt-5-mini"))[2]
    assert "held-out success 0.00 → 0.50" in line
    assert "score 0.50" in line
    assert "2 min left" in line
    assert "USD" in line
    assert "left" not in printed()[-1]


def test_a_long_wait_without_a_terminal_has_a_word() -> None:
    assert not any(EVALUATING in line for line in printed())
    display = RunDisplay(Console(file=io.StringIO(), width=80), 4)
    with display.shown():
        display.doing(EVALUATING)
        display.advanced(1, 4)
        assert waited_for().startswith(f"step 0/4: {EVALUATING} 1/4, about ")
        display.doing("learning")
        assert waited_for().startswith("step 0/4: learning, for ")
    assert waited_for() == ""


def test_a_terminal_shows_how_far_an_evaluation_is() -> None:
    text = io.StringIO()
    display = RunDisplay(Console(file=text, width=120, force_terminal=True), 4)
    with display.shown():
        display.doing(EVALUATING)
        display.advanced(3, 4)
    assert f"{EVALUATING} 3/4, about" in text.getvalue()
