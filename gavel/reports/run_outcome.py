"""What came of a run, in sentences, for the end of a command and the top of a page.

Reads the run directory alone, so that a run that was interrupted and resumed has the same outcome as one that was not.
"""

import math
import os
import shlex
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from gavel.base.text import counted
from gavel.reports.run_figures import Row, is_trained, left_out_of, training_rows
from gavel.reports.statistics import Z95
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.data.left_out import LeftOut, counted_left_out
from gavel.trainer.loop.evaluation import BASE, WINS
from gavel.trainer.loop.train_loop import CUT, EVALUATION, TIMES
from gavel.trainer.runs.checkpoints import read_object
from gavel.trainer.runs.run_listing import is_running, read_wanted_steps

_MUCH_CUT = 0.2
"""Share of replies cut at their token limit from which the outcome speaks of it."""
_SOLVED = 0.95
"""Mean judge score of a step from which a step without training is no fault."""
_CHANGED = 0.1
"""Difference of a held-out share from which the outcome names it."""
_ALIKE = {LeftOut.NO_SIGNAL, LeftOut.NEAR_TIE, LeftOut.IDENTICAL_MEMBERS}
_NO_HABITS = {"step", "split", "time", "success", "truncated", "failed", "reward", "judge_score"}
_FEWEST_TASKS = 8
"""Held-out tasks from which a gain can be told."""


def before_and_after(directory: Path) -> list[tuple[str, Trajectory]]:
    """Attempts at one held-out task in the first and the last evaluation, which went from failure to success if one
    did, and of those in which most other measures rose, too; empty before there are two evaluations."""
    files = sorted((directory / "trajectories" / EVALUATION).glob("*.jsonl.zst"))
    if len(files) < 2:
        return []
    before, after = (
        {str(_task_of(attempt)): attempt for group in TrajectoryStore(file).rows() for attempt in group["trajectories"]}
        for file in (files[0], files[-1])
    )

    def rose(task: str) -> tuple[bool, int]:
        old, new = (Counter[str](attempts[task]["metrics"]) for attempts in (before, after))
        return new["success"] > old["success"], sum(new[name] > old[name] for name in new)

    if (
        task := max((before.keys() & after.keys()) - {"None"}, key=lambda task: (rose(task), task), default=None)
    ) is None:
        return []
    steps = [int(file.name.partition(".")[0]) for file in (files[0], files[-1])]
    attempts = (Trajectory.model_validate(each[task]) for each in (before, after))
    return [(f"after step {step}", attempt) for step, attempt in zip(steps, attempts, strict=True)]


def _task_of(attempt: Row) -> object:
    """The task's id; None of an attempt that a program logged without one."""
    task = attempt["metadata"].get("task")
    return cast("Row", task).get("id") if isinstance(task, dict) else None


def outcome_in_words(
    rows: Sequence[Row],
    *,
    max_tokens: int | None = None,
    scenario: str | None = None,
    judges: Sequence[str] = (),
    settable: bool = True,
) -> list[str]:
    """The run's outcome in one sentence or more, then a suggestion if there is one.

    `rows`: of metrics.jsonl, of a run that is finished or not. `max_tokens`: the run's limit of a reply. `scenario`:
    its name in commands; a run of a program has none. `judges`: the models. `settable`: the command takes every
    setting. A run is pinned to its settings, so a suggestion that changes one begins anew.

        ["Nothing was trained in 2 of 2 steps: the members of every group scored alike, and 100 % of the replies were
          cut at 48 tokens.",
         "Try --fresh --max-tokens 192, or `gavel check returns.py` to see what tells attempts apart."]
    """
    steps = training_rows(rows)
    evaluations = [row for row in rows if row.get("split") == EVALUATION]
    gain, unsure = _gain(evaluations[0], evaluations[-1]) if len(evaluations) > 1 else ("", False)
    if not steps:
        return [gain or _imitation([row["loss"] for row in rows if row.get("loss") is not None])]
    trained, cut, tries = sum(map(is_trained, steps)), _share_cut(steps), list[str]()
    were_cut = ""
    if cut >= _MUCH_CUT:
        limit = "their token limit" if max_tokens is None else f"{max_tokens:,} tokens"
        were_cut = f"{100 * cut:.0f} % of the replies were cut at {limit}"
    if were_cut and settable:
        longer = "with a higher --max-tokens" if max_tokens is None else f"--max-tokens {4 * max_tokens}"
        tries = [f"--fresh {longer}"]
    look = "`gavel view` to read the attempts with their scores"
    tries.append(f"`gavel check {shlex.quote(scenario)}` to see what tells attempts apart" if scenario else look)
    if judges and all(name.removeprefix("gavel/") == "constant" for name in judges):
        tries = ["--fresh --judge MODEL: the judge constant scores all alike"]
    idle = [row for row in steps if not is_trained(row)]
    if trained:  # a step of a solved task had nothing left to teach
        idle = [row for row in idle if row.get("judge_score", 0.0) < _SOLVED]
    said = f"{were_cut}." if were_cut else ""
    if idle:
        why = ", and ".join(filter(None, (_why_idle(idle), were_cut)))
        said = f"Nothing was trained in {len(idle):,} of {counted(len(steps), 'step')}: {why}."
    if not trained:
        return [said, f"Try {', or '.join(tries)}."]
    gain = gain or f"{counted(trained, 'step')} trained; no held-out tasks were measured since."
    if said:
        return [f"{gain} {said}", f"Try {tries[0]}."]
    tasks = "; more held-out tasks tell smaller ones: --fresh --set loop.final_tasks=1024, where the scenario has more"
    return [gain, *([f"More --steps may show a gain{tasks if settable else ''}."] if unsure else [])]


def _scenario_typed(directory: Path) -> str | None:
    """The scenario as the command named it, such as a file; None for a run of a program or the demo."""
    try:
        typed = tomllib.loads((directory / "run.toml").read_text(encoding="utf-8")).get("scenario")
    except (OSError, ValueError):
        return None
    if not isinstance(typed, str) or not (directory / typed.partition(":")[0]).is_file():
        return typed if isinstance(typed, str) else None
    file, *variable = typed.split(":")  # relative to run.toml
    return ":".join([os.path.relpath(directory / file), *variable])


def outcome_of_run(directory: Path, rows: Sequence[Row], unscored: Mapping[str, int] | None = None) -> list[str]:
    """`outcome_in_words` of a run directory, and how far the run came where it is not at its end.

    `unscored`: members that the judge gave no score, by reason; the most common one is told where nothing was trained.
    """
    experiment = read_object(directory / "experiment.json")
    loop, names = experiment.get("loop"), experiment.get("judge")
    limit = cast("Row", loop).get("max_tokens") if isinstance(loop, dict) else None
    said = outcome_in_words(
        rows,
        max_tokens=limit if isinstance(limit, int) else None,
        scenario=_scenario_typed(directory),
        judges=[str(each) for each in cast("list[object]", names)] if isinstance(names, list) else (),
        settable=(directory / "run.toml").exists(),  # which `gavel demo` and a program write not
    )
    steps = training_rows(rows)
    if unscored and not any(map(is_trained, steps)) and any(row.get(LeftOut.UNSCORED.metric) for row in steps):
        reason, count = max(unscored.items(), key=lambda item: item[1])
        said.insert(1, f"{counted(count, 'member')} got no score: {reason}")
    step = max((row["step"] for row in rows if row.get("split") != TIMES), default=0)
    wanted = read_wanted_steps(directory, rows)
    if wanted is None or step >= wanted:
        return said
    if is_running(directory):
        return [*said, f"The run goes on: step {step:,} of {wanted:,}."]
    return [f"Interrupted after step {step:,} of {wanted:,}; the same command goes on.", *said]


def _imitation(losses: Sequence[float]) -> str:
    if not losses:
        return "Nothing was trained yet."
    if len(losses) == 1:
        return f"One step was trained, at a loss of {losses[0]:.3f} a token."
    verdict = "learned" if losses[-1] < losses[0] else "did not learn"
    told = f"loss of a token {losses[0]:.3f} → {losses[-1]:.3f} in {counted(len(losses), 'step')}"
    return f"It {verdict} to imitate: {told}."


def _share_cut(rows: Sequence[Row]) -> float:
    """The share of replies that were cut, over all trajectories; 0 where it is not known."""
    known = [(row[CUT], row.get("trajectories", 1.0)) for row in rows if row.get(CUT) is not None]
    return fmean(*zip(*known, strict=True)) if sum(count for _, count in known) else 0.0


def _why_idle(idle: Sequence[Row]) -> str:
    found = +left_out_of(idle)
    if found and set(found) <= _ALIKE:
        return "the members of every group scored alike"
    return ", ".join(counted_left_out(name, count) for name, count in found.most_common()) or "no group came of it"


def _gain(first: Row, last: Row) -> tuple[str, bool]:
    """The sentence about two evaluations, and whether they leave open that it learned."""
    before, after, tasks = first.get("success"), last.get("success"), int(last.get("trajectories", 0))
    if before is not None and after is not None:
        (base, error), (middle, later) = _estimate(before, int(first.get("trajectories", 0))), _estimate(after, tasks)
        learned, sure, half = after - before, middle - base, Z95 * math.hypot(error, later)
        told = f"held-out success {before:.2f} → {after:.2f} ({learned:+.2f} ± {half:.2f}; {counted(tasks, 'task')})"
    elif (wins := last.get(f"{WINS}{BASE}")) is not None:
        middle, error = _estimate(wins, tasks)
        learned, sure, half = wins - 0.5, middle - 0.5, Z95 * error
        told = f"its held-out attempts beat the base's at {wins:.2f} ± {half:.2f} "
        told += f"({counted(tasks, 'task')}; 0.50 is a draw)"
    else:
        return "Whether it learned cannot be told: the scenario has no success, and no judge compared attempts.", False
    unsure = tasks < _FEWEST_TASKS or abs(sure) <= half
    verdict = "It cannot be told whether it learned" if unsure else "It learned" if learned > 0 else "It got worse"
    return f"{verdict}: {told}.{_habit(first, last)}", unsure


def _habit(first: Row, last: Row) -> str:
    """The share of held-out attempts that changed most beside success."""

    def is_share(value: Any) -> bool:
        return isinstance(value, float) and 0 <= value <= 1

    names = [name for name in last if name not in _NO_HABITS and "/" not in name]
    shares = {name: (first[name], last[name]) for name in names if is_share(last[name]) and is_share(first.get(name))}
    name, (old, new) = max(shares.items(), key=lambda each: abs(each[1][1] - each[1][0]), default=("", (0.0, 0.0)))
    return f" Most else changed: {name.replace('_', ' ')} {old:.2f} → {new:.2f}." if abs(new - old) >= _CHANGED else ""


def _estimate(share: float, count: int) -> tuple[float, float]:
    """The middle of Agresti and Coull's interval, and its standard error, which is never 0."""
    middle = (share * count + 2) / (count + 4)
    return middle, math.sqrt(middle * (1 - middle) / (count + 4))
