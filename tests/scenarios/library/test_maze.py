import pytest

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.library.maze import DIRECTIONS, SIZE, Maze, draw_task, scenario
from gavel.scenarios.rollout import rollout


def maze(number: int) -> Maze:
    return Maze.model_validate(draw_task(number).data["maze"])


@pytest.mark.parametrize("number", range(20))
def test_every_cell_can_be_reached_and_doors_lead_both_ways(number: int):
    drawn = maze(number)
    seen = {drawn.start}
    for cell in (queue := [drawn.start]):
        for direction, other in drawn.ways(cell).items():
            dx, dy = DIRECTIONS[direction]
            assert other == (cell[0] + dx, cell[1] + dy)
            assert cell in drawn.ways(other).values()
            if other not in seen:
                seen.add(other)
                queue.append(other)
    assert len(seen) == SIZE * SIZE
    assert 8 <= drawn.shortest <= scenario.max_turns


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("dance", "Say one step"),
        ("", "Say one step"),
        ("north south", "Say one step"),
        ("go go north", "Say one step"),
        ("northeast", "Say one step"),
        ("teleport", "Say one step"),
    ],
)
async def test_what_is_no_step_moves_nobody(words: str, answer: str):
    async def reply(request: ChatRequest) -> Message:
        return {"content": words}

    episode = await rollout(FunctionModel("words", reply), scenario, scenario.tasks()[0])
    texts = [message["content"] for message in episode.messages() if message["role"] == "user"]
    view = texts[0].partition("\n\n")[2]
    assert all(text.startswith(answer) and text.endswith(view) for text in texts[1:])


async def test_a_wall_is_told_and_a_step_is_taken():
    drawn = maze(0)
    ways = drawn.ways(drawn.start)
    wall = next(direction for direction in DIRECTIONS if direction not in ways)
    open_way = next(iter(ways))
    said = iter((wall, f"Go {open_way.upper()}!"))

    async def reply(request: ChatRequest) -> Message:
        return {"content": next(said, wall)}

    episode = await rollout(FunctionModel("words", reply), scenario, draw_task(0))
    texts = [message["content"] for message in episode.messages() if message["role"] == "user"]
    assert texts[1].startswith("There is a wall. Open ways: ")
    assert texts[2].startswith("Open ways: ")
    assert texts[2] != texts[0].partition("\n\n")[2]
