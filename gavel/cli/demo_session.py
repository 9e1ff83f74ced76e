"""What `gavel demo` does: a judge's scores train a small agent, and a report shows what changed.

Only the size is small: a transformer with LoRA, exact tokens, the LiteLLM client, files on disk. Without a key the
judge is the stand-in, which checks the rubric's written rules. Imports torch; the command in `demo` imports it only
when it runs.
"""

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gavel.cli.cassette_option import replay_account, with_cassette
from gavel.cli.demo import STEPS
from gavel.cli.display import RunDisplay
from gavel.cli.settings import STAND_IN
from gavel.cli.train_session import say_cost, starting_over
from gavel.judge.config import JudgeConfig
from gavel.llm.counted import counted
from gavel.reports.demo_page import CurvePoint, DemoReport, RewardPoint, SummaryRow, write_report
from gavel.reports.run_outcome import Outcome, judged_pair, read_outcome
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoopConfig, TrainConfig
from gavel.trainer.data.left_out import sentence_of
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.train_loop import EVALUATION, TIMES, train_scenario
from gavel.trainer.model import TrainableModel
from gavel.trainer.runs.run_directory import runs_root

_LEARNED = (
    "The base policy knows how to do this job, but its noisy demonstrations gave it a bad habit: it acts without "
    "looking. The judge's reward removed the habit. Only LoRA weights changed, and no reward function was written."
)
_NOT_YET = (
    "The judge's reward changed the policy, but not enough to tell its success from the base's on this many tasks. "
    "Give it more steps."
)
_UNTRAINED = (
    "Nothing was trained: the judge gave all members of every group the same score, so there was nothing to tell a "
    "better rollout from a worse one. The curve stays flat, as it should."
)
_MEASURES = {"looked_before_acting": "looked before acting", "turns": "turns"}
"""Measures shown beside success, and their labels."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The options of the command."""

    seed: int
    judge: JudgeConfig
    steps: int
    fresh: bool = False

    @property
    def judge_name(self) -> str:
        return str(self.judge.models)

    @property
    def run_name(self) -> str:
        """The same for the same command; different for other settings."""
        judge = "" if self.judge_name == STAND_IN else "-" + self.judge_name.replace("/", "-")
        steps = "" if self.steps == STEPS else f"-{self.steps}-steps"
        return f"returns-desk-seed-{self.seed}{judge}{steps}"


async def run_demo(settings: DemoSettings, started: float) -> dict[str, Any]:
    """Trains the embedded policy, continuing an earlier run of the same command, and prints the outcome.

    `started` is when the command started, by `time.monotonic`. Writes `report.html` and `summary.json` to the run
    directory; returns the summary.
    """
    console = Console()
    scenario = find_scenario("returns_desk")
    model = TrainableModel(name=settings.run_name, project="demo", base_model=EMBEDDED_POLICY)
    directory = runs_root() / model.project / model.name
    judge = with_cassette(settings.judge, directory).build(scenario.rubric)
    await judge.probe(replayed=False)
    loop = LoopConfig(steps=settings.steps, seed=settings.seed, max_tokens=64)
    config = TrainConfig(learning_rate=2e-3, warmup_steps=min(3, loop.steps - 1), total_steps=loop.steps)
    async with contextlib.AsyncExitStack() as stack:
        replaced = stack.enter_context(starting_over(console, model)) if settings.fresh else None
        backend = await stack.enter_async_context(LocalBackend())
        await model.register(backend)
        setup = time.monotonic() - started
        start = await model.get_step()
        earlier = sum(row["whole"] for row in backend.history(model, TIMES))
        console.print(_headline(settings, backend.parameter_count(model), start), highlight=False, soft_wrap=True)
        first = next((row["success"] for row in backend.history(model, EVALUATION) if row["step"] == 0), None)
        display = RunDisplay(
            console, loop.steps, start, first, on_start=replaced.delete if replaced else None, judge=judge
        )
        try:
            with display.shown():
                await train_scenario(model, scenario, judge, loop, config, display)
        finally:
            say_cost(console, judge)
        outcome = read_outcome(directory, backend.history(model))
    before, after = await judged_pair(outcome, judge)
    seconds = {"setup": setup, **outcome.seconds, "total": earlier + time.monotonic() - started}
    summary = _summary(settings, outcome, seconds)
    _write_whole(directory / "summary.json", json.dumps(summary, indent=1) + "\n")
    report = directory / "report.html"
    write_report(report, _report(settings, outcome, seconds, before, after))
    if replayed := replay_account(judge):
        console.print(replayed, highlight=False, markup=False, soft_wrap=True)
    _print(console, outcome, report)
    if judge.cassette:
        judge.cassette.close()
    return summary


def _headline(settings: DemoSettings, parameters: int, start: int) -> str:
    judge = "stand-in judge (rules, no key)" if settings.judge_name == STAND_IN else f"judge {settings.judge_name}"
    size = f"embedded policy ({parameters // 1000}k parameters)"
    line = f"Gavel demo · returns desk · {size} · {judge} · {os.cpu_count()} cores"
    if start >= settings.steps:
        return f"{line}\nThis run is finished; here is its outcome again. `gavel demo --fresh` starts over."
    return f"{line}\nContinuing after step {start}." if start else line


def _summary(settings: DemoSettings, outcome: Outcome, seconds: dict[str, float]) -> dict[str, Any]:
    return {
        "seed": settings.seed,
        "judge": settings.judge_name,
        "steps": settings.steps,
        "trained_steps": outcome.trained_steps,
        "heldout_tasks": outcome.trained.tasks,
        "base": _figures(outcome.base.measures),
        "trained": _figures(outcome.trained.measures),
        "judge_vs_success_tau": outcome.tau,
        "groups": dict(outcome.statuses),
        "left_out": dict(outcome.left_out),
        "curve": [
            {"step": point.step, "heldout_success": point.success, "tasks": point.tasks} for point in outcome.curve
        ],
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }


def _what_happened(outcome: Outcome) -> str:
    if not outcome.trained_steps:
        return _UNTRAINED
    gained = outcome.trained.success - outcome.base.success
    return _LEARNED if gained > outcome.trained.half_width + outcome.base.half_width else _NOT_YET


def _figures(measures: dict[str, float]) -> dict[str, float]:
    return {
        "heldout_success": measures["success"],
        **{name: measures[name] for name in _MEASURES},
    }


def _report(
    settings: DemoSettings, outcome: Outcome, seconds: dict[str, float], before: Trajectory, after: Trajectory
) -> DemoReport:
    base, trained = outcome.base, outcome.trained
    again = f"gavel demo --seed {settings.seed} --judge {settings.judge_name} --steps {settings.steps} --fresh"
    judge = f"It was {settings.judge_name}."
    if settings.judge_name == STAND_IN:
        judge = (
            "It was the stand-in, which checks written rules and is no language model; GAVEL_JUDGE_MODEL replaces it."
        )
    return DemoReport(
        title="Gavel demo: the returns desk",
        explanation=_what_happened(outcome),
        caveat=(
            "The policy has a few hundred thousand parameters and learned nothing but this job. The judge read the "
            f"transcripts and the rubric, never the true outcome, which is measured here for comparison only. {judge}"
        ),
        summary=[
            SummaryRow(
                "held-out success",
                f"{base.success:.2f} ± {base.half_width:.2f}",
                f"{trained.success:.2f} ± {trained.half_width:.2f}",
            ),
            *(
                SummaryRow(label, f"{base.measures[name]:.2f}", f"{trained.measures[name]:.2f}")
                for name, label in _MEASURES.items()
            ),
        ],
        curve=[CurvePoint(point.step, point.success, point.half_width, point.tasks) for point in outcome.curve],
        rewards=[RewardPoint(step, reward) for step, reward in outcome.rewards],
        scored=outcome.scored,
        tau=outcome.tau,
        before=before,
        after=after,
        seconds=seconds,
        left_out={sentence_of(reason): count for reason, count in outcome.left_out.items()},
        settings={
            "seed": str(settings.seed),
            "judge": settings.judge_name,
            "base model": EMBEDDED_POLICY,
            "steps": str(settings.steps),
            "run again": again,
        },
    )


def _print(console: Console, outcome: Outcome, report: Path) -> None:
    base, trained = outcome.base, outcome.trained
    table = Table(box=None, pad_edge=False)
    for heading in ("", "before", "after", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    interval = f"({counted(trained.tasks, 'task')}, 95 % interval ±{trained.half_width:.2f})"
    table.add_row("held-out success", f"{base.success:.2f}", f"{trained.success:.2f}", interval)
    for name, label in _MEASURES.items():
        table.add_row(label, f"{base.measures[name]:.2f}", f"{trained.measures[name]:.2f}", "")
    console.print(table)
    curve = "  ".join(f"{point.step}: {point.success:.2f}" for point in outcome.curve)
    console.print(f"by step: {curve}", highlight=False)
    tau = "no order to compare" if outcome.tau is None else f"tau {outcome.tau:.2f}"
    unscored, degenerate = outcome.statuses["unscored"], outcome.statuses["degenerate"]
    console.print(
        f"judge vs truth: {tau}, {unscored} unscored, {counted(degenerate, 'degenerate group')} left out",
        highlight=False,
    )
    for reason, count in outcome.left_out.most_common():
        console.print(f"left out: {count} {sentence_of(reason)}", highlight=False)
    console.print(_what_happened(outcome), highlight=False)
    console.print(
        f"Report: {report}      Next: gavel train my_scenario.py --judge openai/gpt-5-mini",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _write_whole(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)
