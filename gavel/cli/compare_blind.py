"""Asks a judge to rank held-out attempts of compared runs, without telling it whose they are.

All runs of one seed attempted the same tasks with the same seeds, so a group is their last attempts at one task, and,
where the runs begin alike, the attempt before training. What is judged is kept in blind/ of the comparison's
directory, and not asked for again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gavel.base.errors import GavelError
from gavel.cli.cassette_option import with_cassette
from gavel.cli.follower import Follower
from gavel.judge.config import JudgeConfig, read_text_option
from gavel.judge.judge import Judge
from gavel.judge.panel.modes import ModeName
from gavel.reports.blind_ranking import blind_ranking
from gavel.reports.comparison import CellFigures, Comparison
from gavel.reports.run_figures import stored_groups
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.joint_judging import joint_groups, judge_together, judged_before, judged_file

BEFORE = "before training"
Attempts = Mapping[str, Mapping[tuple[str, int], TrajectoryGroup]]
"""By contender, then by task and seed."""
FOLDER = "blind"


def blind_judge(
    settings: JudgeConfig, model: str, rubric: str | None, folder: Path, mode: ModeName = "pairwise"
) -> Judge:
    """A judge with the settings of the one that trains, but for its model, rubric and mode.

    Its replies are kept in the comparison's directory `folder`. Raises `JudgeError`.
    """
    chosen = settings.model_copy(update={"models": model, "mode": mode, "rubric": None})
    return with_cassette(chosen, folder / FOLDER).build(read_text_option(rubric, "rubric"))


async def with_ranking(comparison: Comparison, judge: Judge, follow: Follower) -> Comparison:
    """The comparison with the ranking of its runs' attempts, and of those before training where all began alike.

    Raises `GavelError` where nothing can be compared, and `JudgeError` for a judge that cannot be asked.
    """
    cells = [cell for arm in comparison.arms for cell in arm.cells]
    by_seed = attempts_by_seed(cells, same_start=comparison.planned)
    groups = {seed: _comparable(joint_groups(attempts)) for seed, attempts in by_seed.items()}
    if not any(groups.values()):
        raise GavelError(
            "no two runs have stored attempts at the same held-out tasks, so there is nothing to rank.",
            "Leave --blind-judge out, or compare runs that were evaluated on the same held-out tasks.",
        )
    file = judged_file(judge, comparison.directory / FOLDER)
    missing = sum(len(of_seed) - len(judged_before(of_seed, file)) for of_seed in groups.values())

    async def judge_all(advance: Callable[[], None]) -> dict[int, list[TrajectoryGroup]]:
        return {seed: await judge_together(judge, of_seed, file, advance) for seed, of_seed in groups.items()}

    if missing:
        status = (lambda: judge.status) if judge.asks_servers else (lambda: "")
        with follow.waiting("blind ranking", missing, "tasks", status) as advance:
            judged = await judge_all(advance)
    else:
        judged = await judge_all(lambda: None)
    contenders = dict.fromkeys(name for attempts in by_seed.values() for name in attempts)
    ranking = blind_ranking(
        judged,
        list(contenders),
        judge.names,
        rubric=judge.rubric.words,
        cost=str(judge.budget.cost) if judge.asks_servers else "",
    )
    return replace(comparison, blind=ranking)


def attempts_by_seed(cells: Sequence[CellFigures], *, same_start: bool) -> dict[int, Attempts]:
    """The last held-out attempts of each run; with `same_start` the first ones of a seed's first run too.

    A seed of one run has nothing to be compared with, and is left out.
    """
    found: dict[int, dict[str, Mapping[tuple[str, int], TrajectoryGroup]]] = {}
    for cell in cells:
        if not cell.success:
            continue
        of_seed = found.setdefault(cell.seed, {})
        if same_start and not of_seed and min(cell.success) < max(cell.success):
            of_seed[BEFORE] = _held_out(cell.directory, min(cell.success), cell.seed)
        of_seed[cell.arm] = _held_out(cell.directory, max(cell.success), cell.seed)
    return {seed: attempts for seed, attempts in found.items() if sum(map(bool, attempts.values())) > 1}


def _comparable(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Those with attempts of at least two contenders."""
    return [group for group in groups if len({str(member.metadata.get("model")) for member in group}) > 1]


def _held_out(directory: Path, step: int, seed: int) -> dict[tuple[str, int], TrajectoryGroup]:
    """The attempts of an evaluation by task, each as a group of the agents that played it."""
    members: dict[str, list[Trajectory]] = {}
    for at, group in stored_groups(directory, "held_out"):
        for member in group if at == step else ():
            task = member.metadata.get("task")
            if isinstance(task, dict) and member.status != "failed":
                members.setdefault(str(task.get("id")), []).append(member)
    return {(task, seed): TrajectoryGroup(found) for task, found in members.items()}
