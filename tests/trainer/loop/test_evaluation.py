"""What an evaluation makes of episodes that differ in what is known of them."""

from typing import Any

import pytest

from gavel.llm.types import Message
from gavel.scenarios.function_model import ChatRequest, FunctionModel
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import LoopConfig
from gavel.trainer.loop.evaluation import evaluate


async def answer(request: ChatRequest) -> Message:
    return {"content": "Done."}


MODEL = FunctionModel("script", answer)


async def test_an_evaluation_stops_where_a_world_cannot_tell_how_episodes_ended():
    class Boaster:
        async def reset(self, task: Task) -> None:
            self.won = task.data["wins"]

        def success(self, trajectory: Trajectory) -> bool:
            if not self.won:
                raise KeyError("score")
            return True

    tasks = [Task(user=f"Play {number}.", data={"wins": number < 2}) for number in range(4)]
    scenario = Scenario("boaster", environment=Boaster, tasks=tasks[:1], held_out=tasks[1:])

    with pytest.raises(ScenarioError, match="cannot tell how 2 of 3 held-out episodes ended"):
        await evaluate(MODEL, scenario, 3, LoopConfig())


async def test_a_metric_that_only_some_episodes_have_is_averaged_over_these():
    async def play(model: Any, task: Task) -> Trajectory:
        number = int(task.user)
        found = {"rare": 8.0} if number == 1 else {}
        return Trajectory(messages_and_choices=[{"role": "user", "content": task.user}], metrics=found)

    tasks = [Task(user=str(number)) for number in range(4)]
    scenario = Scenario("rare", rollout=play, tasks=tasks[:1], held_out=tasks[1:])
    found = await evaluate(MODEL, scenario, 3, LoopConfig())
    assert found.measures == {"rare": 8.0, "truncated": 0.0}
