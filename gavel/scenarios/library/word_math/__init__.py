"""Word math: problems of a few steps, a calculator, and a last line with the answer: `#### 72`.

Problems are generated; `word_math:FILE` and `word_math:DIRECTORY` read others in GSM8K's form, JSON lines or parquet
(`gavel.scenarios.bridges.math_problems`). Success is GSM8K's strict one: the last number after `####`, and no other.
"""

import re
from collections.abc import Sequence

from gavel.prompts import render
from gavel.scenarios.library.drawn_tasks import DrawnTasks
from gavel.scenarios.library.word_math.calculator import calculate as calculated
from gavel.scenarios.library.word_math.problems import HELD_OUT_FROM, draw_task
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

_TRAIN, _HELD_OUT = range(HELD_OUT_FROM), range(HELD_OUT_FROM, HELD_OUT_FROM + 1000)
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_LAST_CHARACTERS = 300
"""Of a reply, in which the answer must stand."""


def calculate(expression: str) -> str:
    """Compute an arithmetic expression, such as (3 + 4) * 25."""
    return calculated(expression)


def answer_in(reply: str) -> str | None:
    """The last number after `#### ` in the last 300 characters, without commas; None without one."""
    found = _STRICT.findall(reply[-_LAST_CHARACTERS:])
    return found[-1].replace(",", "") if found else None


def _reply(trajectory: Trajectory) -> str:
    last = trajectory.messages()[-1]
    return (last.get("content") or "") if last["role"] == "assistant" else ""


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the answer is the right one, digit by digit."""
    said = answer_in(_reply(trajectory))
    return trajectory.status == "finished" and said == Task.of(trajectory.metadata).data["answer"]


def hand_reward(trajectory: Trajectory) -> float:
    """What somebody might write by hand: the answer, and a tenth for the form of the last line."""
    return 0.9 * succeeded(trajectory) + 0.1 * (answer_in(_reply(trajectory)) is not None)


def scenario_of(name: str, tasks: Sequence[Task], held_out: Sequence[Task] | float) -> Scenario:
    """The scenario over any problems: each task's `data["answer"]` is the number to find."""
    return Scenario(
        name=name,
        system=render("scenarios/word_math_system.j2").strip(),
        tools=[calculate],
        tasks=tasks,
        held_out=held_out,
        max_turns=10,
        rubric=render("scenarios/word_math_rubric.j2").strip(),
        success=succeeded,
        hand_reward=hand_reward,
        measures={"has_answer": lambda trajectory: answer_in(_reply(trajectory)) is not None},
    )


scenario = scenario_of("word_math", DrawnTasks(_TRAIN, draw_task), DrawnTasks(_HELD_OUT, draw_task))
