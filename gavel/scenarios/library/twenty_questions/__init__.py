"""Twenty questions: a simulated user thinks of an animal and answers the agent's questions.

The user answers by a table of facts, without a model; GAVEL_USER_MODEL names a language model to play it.
"""

import os
import re

from gavel.prompts import render
from gavel.scenarios.library.twenty_questions.animals import ANIMALS, answer_by_facts
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.simulated_user import SimulatedUser
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

_QUESTIONS = 20


def goal(task: Task) -> str:
    return (
        f"Your animal is: {task.data['animal']}. The assistant asks about it. Answer every question by yes or no, "
        "truly, and say nothing else of the animal. You are done when the assistant has named it."
    )


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the agent's last words name the animal, and no other."""
    said = [message for message in trajectory.messages() if message["role"] == "assistant"]
    last = (said[-1].get("content") or "").casefold() if said else ""
    named = {animal for animal in ANIMALS if re.search(rf"\b{animal}s?\b", last)}
    return named == {str(Task.of(trajectory.metadata).data["animal"])}


def hand_reward(trajectory: Trajectory) -> float:
    """What somebody might write by hand: more for fewer questions."""
    return succeeded(trajectory) * (1 - 0.5 * float(trajectory.metrics["turns"]) / _QUESTIONS)


def _tasks(held_out: bool) -> list[Task]:
    chosen = [animal for at, animal in enumerate(ANIMALS) if (at % 4 == 1) == held_out]
    words = "I think of an animal. Which one is it?"
    return [Task(id=animal, user=words, data={"animal": animal}) for animal in chosen]


scenario = Scenario(
    name="twenty_questions",
    system=render("scenarios/twenty_questions_system.j2").strip(),
    user=SimulatedUser(os.environ.get("GAVEL_USER_MODEL") or answer_by_facts, persona="a friendly player", goal=goal),
    tasks=_tasks(held_out=False),
    held_out=_tasks(held_out=True),
    max_turns=_QUESTIONS,
    rubric=render("scenarios/twenty_questions_rubric.j2").strip(),
    success=succeeded,
    hand_reward=hand_reward,
)
