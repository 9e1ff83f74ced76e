"""reasoning-gym's datasets: questions with a scorer of their own.

    gavel evaluate "reasoning_gym:leg_counting?size=500&seed=1" --models openai/gpt-5-mini
    reasoning_gym:leg_counting?min_animals=3          # what is no option goes to the dataset

The scorer is the hand reward, and its full score is success: for comparison. The judge is shown the dataset's answer.
"""

from typing import Any

from pydantic import BaseModel, Field

from gavel.prompts import render
from gavel.scenarios.packaged_world import OwnChance, installed, parsed
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.tools import described
from gavel.scenarios.trajectory import Trajectory


class Options(BaseModel):
    size: int = Field(default=500, ge=1, le=100_000)
    """Max training questions: duplicates are asked once."""
    held_out: int = Field(default=100, ge=0, le=100_000)
    seed: int = Field(default=0, ge=0)


def scenario_at(address: str) -> Scenario:
    """The scenario of `reasoning_gym:DATASET?size=…&seed=…`. Raises `ScenarioError`."""
    name, options, config = parsed("reasoning_gym", address, Options)
    package: Any = installed("reasoning_gym", "reasoning-gym", f"reasoning_gym:{name}")
    factory: Any = installed("reasoning_gym.factory", "reasoning-gym", f"reasoning_gym:{name}")
    if name not in factory.DATASETS:
        near = [each for each in sorted(factory.DATASETS) if name and (name in each or each in name)]
        raise ScenarioError(
            f"reasoning-gym has no dataset {name!r}",
            f"Name one of its {len(factory.DATASETS)}, such as {', '.join(near or sorted(factory.DATASETS))[:200]}.",
        )
    try:
        with OwnChance(options.seed):
            dataset = package.create_dataset(name, size=options.size + options.held_out, seed=options.seed, **config)
            entries = [dataset[i] for i in range(options.size + options.held_out)]
    except Exception as error:
        raise ScenarioError(
            f"the dataset {name} cannot be made: {described(error)}", "Look at the options of its configuration."
        ) from error
    seen: set[str] = set()
    splits: list[list[Task]] = [[], []]
    for index, entry in enumerate(entries):
        question, answer = str(entry["question"]), entry.get("answer")
        if question not in seen:
            seen.add(question)
            right = None if answer is None else f"A right answer: {answer}"
            task = Task(id=f"{name}-{options.seed}-{index}", user=question, data={"index": index}, reference=right)
            splits[index >= options.size].append(task)

    def score(trajectory: Trajectory) -> float:
        """Score of the last text between the answer tags, from 0 to 1; 0 for an answer that cannot be scored."""
        index: Any = Task.of(trajectory.metadata).data["index"]
        try:
            with OwnChance(0):
                found = dataset.score_answer(answer_of(trajectory.closing_text()), entries[index])
            return min(max(float(found), 0.0), 1.0)
        except Exception as error:  # the dataset's parser raises for invalid answers
            trajectory.log(f"the answer cannot be scored: {described(error)}")
            return 0.0

    return Scenario(
        f"reasoning_gym-{name}",
        system=render("scenarios/reasoning_gym_system.j2").strip(),
        tasks=splits[0],
        held_out=splits[1],
        max_turns=1,
        rubric=render("scenarios/reasoning_gym_rubric.j2").strip(),
        success=lambda trajectory: score(trajectory) >= 1.0 - 1e-9,
        hand_reward=score,
    )


def answer_of(reply: str) -> str | None:
    """The last text between <answer> and </answer>; None if there is none."""
    _, opened, after = reply.rpartition("<answer>")
    if not opened:
        return None
    answer, closed, _ = after.partition("</answer>")
    return answer.strip() if closed else None
