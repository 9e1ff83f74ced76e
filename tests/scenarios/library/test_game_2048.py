import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.library.game_2048 import DIRECTIONS, TARGET, Board, scenario
from gavel.scenarios.rollout import rollout

boards = st.lists(st.sampled_from((0, 0, 2, 4, 8, 16)), min_size=16, max_size=16).map(lambda cells: Board(tuple(cells)))


def row(*cells: int) -> Board:
    return Board((*cells, *(0,) * 12))


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ((2, 2, 2, 2), (4, 4, 0, 0)),
        ((2, 2, 4, 0), (4, 4, 0, 0)),
        ((4, 2, 2, 0), (4, 4, 0, 0)),
        ((2, 0, 0, 2), (4, 0, 0, 0)),
        ((2, 2, 2, 0), (4, 2, 0, 0)),
        ((2, 4, 8, 16), (2, 4, 8, 16)),
        ((0, 0, 0, 2), (2, 0, 0, 0)),
    ],
)
def test_a_tile_merges_once_in_a_move(before: tuple[int, ...], left: tuple[int, ...]):
    assert row(*before).slid("left") == row(*left)
    assert row(*before[::-1]).slid("right") == row(*left[::-1])


@given(boards)
def test_a_move_keeps_the_sum_and_a_turned_board_moves_alike(board: Board):
    for direction in DIRECTIONS:
        assert sum(board.slid(direction).cells) == sum(board.cells)
    turned = Board(tuple(board.cells[column * 4 + at] for at in range(4) for column in range(4)))
    up = board.slid("up")
    assert Board(tuple(up.cells[column * 4 + at] for at in range(4) for column in range(4))) == turned.slid("left")
    assert Board.read(board.drawn()) == board


@given(boards.filter(lambda board: bool(board.empty)), st.integers())
def test_a_new_tile_comes_into_an_empty_cell(board: Board, seed: int):
    after = board.with_tile(random.Random(seed))
    (changed,) = [at for at in range(16) if after.cells[at] != board.cells[at]]
    assert (board.cells[changed], after.cells[changed] in (2, 4)) == (0, True)


async def test_words_that_are_no_move_cost_a_turn_and_change_nothing():
    said = iter(("up, then left", "UPWARDS", "", "left left", "Left.", "down!"))

    async def reply(request: ChatRequest) -> Message:
        return {"content": next(said, "up up")}

    episode: Any = await rollout(FunctionModel("words", reply), scenario, scenario.tasks()[3])
    first, *answers = [message["content"] for message in episode.messages() if message["role"] == "user"]
    shown = first.partition("\n\n")[2]
    assert [answer.partition("\n")[2] for answer in answers[:4]] == [shown] * 4
    assert all("Say up, down, left or right" not in answer for answer in answers[4:6])
    assert (episode.status, episode.metrics["success"]) == ("truncated", 0)
    assert str(TARGET) not in "".join(answers)
