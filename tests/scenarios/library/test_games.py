"""The rules of the shipped games, and what words that are no move do."""

import asyncio
import random
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.library import game_2048, maze, tic_tac_toe
from gavel.scenarios.library.game_2048 import DIRECTIONS, Board
from gavel.scenarios.library.tic_tac_toe import PERFECT, RANDOM, SELF
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import Player, Turns, played_by
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.scripts import scripted


async def said(scenario: Scenario, *words: str) -> tuple[Trajectory, list[str]]:
    """An episode of an agent that says these words, the last again and again; what it was told."""
    episode = await rollout(scripted(*words), scenario, scenario.tasks("held_out")[0])
    return episode, [message["content"] for message in episode.messages() if message["role"] == "user"]


boards = st.lists(st.sampled_from((0, 0, 2, 4, 8, 16)), min_size=16, max_size=16).map(lambda cells: Board(tuple(cells)))


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ((2, 2, 2, 2), (4, 4, 0, 0)),
        ((4, 2, 2, 0), (4, 4, 0, 0)),
        ((2, 0, 0, 2), (4, 0, 0, 0)),
        ((2, 2, 2, 0), (4, 2, 0, 0)),
        ((2, 4, 8, 16), (2, 4, 8, 16)),
    ],
)
def test_a_tile_merges_once_in_a_move(before: tuple[int, ...], left: tuple[int, ...]):
    below = (0,) * 12
    assert Board((*before, *below)).slid("left") == Board((*left, *below))
    assert Board((*before[::-1], *below)).slid("right") == Board((*left[::-1], *below))


@given(boards)
def test_a_move_keeps_the_sum_and_a_turned_board_moves_alike(board: Board):
    for direction in DIRECTIONS:
        assert sum(board.slid(direction).cells) == sum(board.cells)

    def turned(board: Board) -> Board:
        return Board(tuple(board.cells[column * 4 + at] for at in range(4) for column in range(4)))

    assert turned(board.slid("up")) == turned(board).slid("left")
    assert Board.read(board.drawn()) == board


@given(boards.filter(lambda board: 0 in board.cells), st.integers())
def test_a_new_tile_comes_into_an_empty_cell(board: Board, seed: int):
    after = board.with_tile(random.Random(seed))
    (changed,) = [at for at in range(16) if after.cells[at] != board.cells[at]]
    assert (board.cells[changed], after.cells[changed] in (2, 4)) == (0, True)


async def test_words_that_are_no_move_cost_a_turn_and_change_nothing():
    for words in ("dance", "", "north south", "northeast"):
        _, (first, *answers) = await said(maze.scenario, words)
        assert all("Say one step" in each and each.endswith(first.partition("\n\n")[2]) for each in answers)
    episode, (first, *answers) = await said(
        game_2048.scenario, "up, then left", "UPWARDS", "", "left left", "Left.", "down!", "up up"
    )
    assert [answer.partition("\n")[2] for answer in answers[:4]] == [first.partition("\n\n")[2]] * 4
    assert all("Say up, down, left or right" not in answer for answer in answers[4:6])
    assert (episode.status, episode.metrics["success"]) == ("truncated", 0)


@pytest.mark.parametrize("number", range(20))
def test_every_cell_can_be_reached_and_doors_lead_both_ways(number: int):
    drawn = maze.Maze.model_validate(maze.draw_task(number).data["maze"])
    reached = maze.shortest_ways(drawn.start, drawn.ways)
    assert len(reached) == maze.SIZE * maze.SIZE
    assert all(cell in drawn.ways(other).values() for cell in reached for other in drawn.ways(cell).values())
    assert 8 <= drawn.shortest <= maze.scenario.max_turns


def hasty(task: Task, opening: str, dice: Any) -> Turns:
    """Takes the last free cell."""
    said = opening
    while True:
        said = yield max(re.findall(r"[1-9]", said[: said.index("\n\n")]))


@pytest.mark.parametrize("opponent", [RANDOM, PERFECT])
async def test_an_expert_reaches_what_perfect_play_gives_and_a_fool_loses(opponent: str):
    scenario = tic_tac_toe.scenario
    held_out = scenario.tasks("held_out")
    tasks = [task.model_copy(update={"data": {**task.data, "opponent": opponent}}) for task in held_out]

    async def played(player: Player) -> list[Trajectory]:
        return await asyncio.gather(*(rollout(played_by(player, task), scenario, task, seed=3) for task in tasks))

    (experts, fools), hasties = [await played(each) for each in tic_tac_toe.PLAYERS.values()], await played(hasty)
    success: Any = scenario.success
    assert all(success(episode) and episode.status == "finished" for episode in experts)
    assert any(episode.metrics["points"] == 1 for episode in experts)
    assert all(episode.metrics["points"] == 0 for episode in fools if episode.metrics["foul"])
    assert any("You have lost. You named no free cell." in episode.messages()[-1]["content"] for episode in fools)
    assert 0 < sum(map(success, hasties)) < len(tasks)


async def test_in_self_play_each_side_has_a_trajectory_of_its_own_and_one_s_gain_is_the_other_s_loss():
    results: Counter[tuple[float, float]] = Counter()
    for task in tic_tac_toe.scenario.tasks():
        others: list[Trajectory] = []
        x = await rollout(played_by(hasty, task), tic_tac_toe.scenario, task, seed=1, others=others)
        (o,) = others
        assert (x.agent, o.agent, task.data["opponent"]) == ("X", "O", SELF)
        assert x.metrics["points"] + o.metrics["points"] == 1
        assert {len(list(x.choices())) - len(list(o.choices()))} <= {0, 1}
        results[float(x.metrics["points"]), float(o.metrics["points"])] += 1
        opening: Any = task.data["opening"]
        assert x.messages()[1]["content"].startswith(tic_tac_toe.Board(tuple(opening)).drawn())
    assert results[1.0, 0.0]
    assert results[0.0, 1.0]


def test_the_last_number_that_stands_alone_is_the_move():
    cells = {"5": 5, "I take 3.": 3, "3 or 4? 4!": 4, "**7**": 7} | dict.fromkeys(("", "10", "1.5", "cell_7", "٣"), 0)
    assert {words: tic_tac_toe.cell_in(words) for words in cells} == cells


def test_perfect_play_draws_and_a_centre_answered_at_an_edge_is_lost():
    assert tic_tac_toe.value(tic_tac_toe.Board(), "X") == 0.5
    assert tic_tac_toe.value(tic_tac_toe.Board((5, 2)), "X") == 1
    assert tic_tac_toe.Board((1, 4, 2, 5, 3)).winner == "X"
    with pytest.raises(ValueError, match="is not free"):
        tic_tac_toe.Board((1,)).after(1)
