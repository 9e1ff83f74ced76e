"""What the shipped scenarios have in common: texts by name, tasks by number, a check, and players' moves."""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cache
from itertools import cycle
from typing import Any

from gavel.prompts import render
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import Call, Player, Turns
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.trajectory import Trajectory


def shipped(
    name: str,
    tasks: Sequence[Task],
    held_out: Sequence[Task] | float,
    *,
    words: Mapping[str, object] | None = None,
    measures: Mapping[str, Callable[[Trajectory], float]] | None = None,
    **options: Any,
) -> Scenario:
    """A scenario with the system prompt and the rubric of its name, up to a dash, in `gavel/prompts/scenarios/`.

    `words`: variables of both templates. `options`: those of `Scenario`.
    """
    texts = f"scenarios/{name.partition('-')[0]}"
    for part in {"system", "rubric"} - options.keys():
        options[part] = render(f"{texts}_{part}.j2", **(words or {})).strip()
    return Scenario(name, tasks=tasks, held_out=held_out, measures=measures, **options)


def drawn(draw: Callable[[int], Task], train: int, held_out: int) -> tuple[DrawnTasks, DrawnTasks]:
    """Tasks by number from 0: `train` ones, then `held_out` ones."""
    kept = cache(draw)
    return DrawnTasks(range(train), kept), DrawnTasks(range(train, train + held_out), kept)


def has_closed(trajectory: Trajectory) -> bool:
    """Whether the agent ended the episode with a message."""
    return trajectory.status == "finished" and bool(trajectory.closing_text().strip())


def ask(tool: str, **arguments: str | int) -> Generator[Call | str, str, Any]:
    """Calls a tool; gives its result, parsed from JSON."""
    return json.loads((yield Call(tool, arguments)))


def playing(turns: Iterable[Call | str]) -> Turns:
    """Takes these turns, whatever they are answered."""
    for turn in turns:  # noqa: UP028 - a list takes no answers
        yield turn


def repeating(*words: str) -> Player:
    """A player that says these, one a turn, again and again."""
    return lambda _task, _opening, _dice: playing(cycle(words))


def move_in(action: str) -> str:
    """An agent's move, without case, and without space, dots and quotes around it."""
    return action.strip().strip(".!\"'").casefold()
