import asyncio
import re
from collections import Counter
from typing import Any

import pytest

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.library.tic_tac_toe import PERFECT, RANDOM, SELF, Board, best_moves, cell_in, scenario, value
from gavel.scenarios.rollout import rollout
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import Endpoint, says


def games(opponent: str) -> list[Task]:
    """The held-out tasks, against `opponent`."""
    return [
        task.model_copy(update={"data": {**task.data, "opponent": opponent}}) for task in scenario.tasks("held_out")
    ]


def position(request: ChatRequest) -> Board:
    """What the last board shows, with moves in an order that gives it."""
    cells = re.findall(r"[XO1-9]", "".join(request.messages[-1]["content"].splitlines()[:3]))
    taken = {side: [cell for cell, mark in enumerate(cells, 1) if mark == side] for side in "XO"}
    moves: list[int] = []
    while any(taken.values()):
        moves.append(taken["XO"[len(moves) % 2]].pop())
    return Board(tuple(moves))


async def _expert(request: ChatRequest) -> Message:
    return {"content": f"I take {best_moves(position(request))[0]}."}


async def _fool(request: ChatRequest) -> Message:
    return {"content": str(position(request).moves[0])}  # a cell that is taken


async def _hasty(request: ChatRequest) -> Message:
    return {"content": str(position(request).free[-1])}


EXPERT, FOOL, HASTY = (FunctionModel(f.__name__, f) for f in (_expert, _fool, _hasty))


def succeeded(episode: Trajectory) -> bool:
    assert scenario.success is not None
    return scenario.success(episode)


@pytest.mark.parametrize("opponent", [RANDOM, PERFECT])
async def test_an_expert_reaches_what_perfect_play_gives_and_a_fool_loses(opponent: str):
    tasks = games(opponent)
    experts = await asyncio.gather(*(rollout(EXPERT, scenario, task, seed=3) for task in tasks))
    assert all(succeeded(episode) for episode in experts)
    assert all(episode.status == "finished" for episode in experts)
    assert any(episode.metrics["points"] == 1 for episode in experts)
    fools = await asyncio.gather(*(rollout(FOOL, scenario, task, seed=3) for task in tasks))
    assert all(episode.metrics["foul"] and episode.metrics["points"] == 0 for episode in fools)
    assert "You have lost. You named no free cell." in fools[0].messages()[-1]["content"]
    hasty = await asyncio.gather(*(rollout(HASTY, scenario, task, seed=3) for task in tasks))
    assert 0 < sum(map(succeeded, hasty)) < len(tasks)


async def test_in_self_play_each_side_has_a_trajectory_of_its_own_and_one_s_gain_is_the_other_s_loss():
    results: Counter[tuple[float, float]] = Counter()
    for task in scenario.tasks():
        others: list[Trajectory] = []
        x = await rollout(HASTY, scenario, task, seed=1, others=others)
        (o,) = others
        assert (x.agent, o.agent) == ("X", "O")
        assert x.metrics["points"] + o.metrics["points"] == 1
        assert {len(list(x.choices())) - len(list(o.choices()))} <= {0, 1}
        assert task.data["opponent"] == SELF
        results[float(x.metrics["points"]), float(o.metrics["points"])] += 1
        opening: Any = task.data["opening"]
        assert x.messages()[1]["content"].startswith(Board(tuple(opening)).drawn())
    assert results[1.0, 0.0]
    assert results[0.0, 1.0]


async def test_a_litellm_model_plays_the_other_side_and_is_not_trained(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_BASE", endpoint.url)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
    endpoint.script = [lambda request: says("none", usage)] * 9
    others: list[Trajectory] = []
    episode = await rollout(EXPERT, scenario, games("openai/gpt-4o-mini")[0], others=others)
    assert not others
    assert (episode.metrics["points"], episode.metrics["opponent_foul"]) == (1, True)
    assert episode.metrics["other_models_calls"] == 1
    assert episode.metrics["other_models_cost_usd"] > 0
    assert "The other side named no free cell." in episode.messages()[-1]["content"]


@pytest.mark.parametrize(
    ("words", "cell"),
    [("5", 5), ("I take 3.", 3), ("3 or 4? 4!", 4), ("**7**", 7), ("(2)", 2)]
    + [(words, 0) for words in ("", "10", "1.5", "x9", "cell_7", "none", "٣")],
)
def test_the_last_number_that_stands_alone_is_the_move(words: str, cell: int):
    assert cell_in(words) == cell


def test_perfect_play_draws_and_a_centre_answered_at_an_edge_is_lost():
    assert value(Board(), "X") == 0.5
    assert value(Board((5, 2)), "X") == 1
    assert value(Board((5, 2)), "O") == 0
    assert Board((1, 4, 2, 5, 3)).winner == "X"
    with pytest.raises(ValueError, match="is not free"):
        Board((1,)).after(1)
