"""An episode whose agent acts from outside is the episode that a rollout plays."""

import asyncio
import json

import pytest

import gavel
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, find_scenario
from gavel.scenarios.stepped_episode import SteppedEpisode, SteppedEpisodeError, outcome
from gavel.scenarios.task import Task


def call(name: str, number: int = 0, **arguments: object) -> dict[str, object]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": "", "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}


DESK = find_scenario("returns_desk")


def right_turns(task: Task) -> list[dict[str, object]]:
    data = task.data
    return [
        call("look_up_order", 0, order_id=data["order_id"]),
        call("read_policy", 1, item=data["item"]),
        call("refund", 2, order_id=data["order_id"]),
        {"content": "Done, your money is on its way."},
    ]


async def in_process(task: Task):
    turns = iter(right_turns(task))

    async def reply(request: ChatRequest):
        return next(turns)

    return await rollout(FunctionModel("script", reply), DESK, task, seed=1)


async def test_the_same_turns_give_the_same_attempt_as_in_process():
    for task in DESK.tasks("held_out")[:6]:
        inside = await in_process(task)
        async with SteppedEpisode(DESK, task, seed=1) as episode:
            moment = await episode.start()
            assert [message["role"] for message in moment.new] == ["system", "user"]
            assert [tool["function"]["name"] for tool in moment.tools][:2] == ["look_up_order", "read_policy"]
            for turn in right_turns(task):
                assert not moment.over
                moment = await episode.act(turn)
        assert moment.over
        assert episode.trajectory.messages() == inside.messages()
        assert episode.trajectory.tools == inside.tools
        assert outcome(DESK, episode.trajectory) == {
            "success": float(DESK.success(inside)),
            "hand_reward": DESK.hand_reward(inside),
            "looked_before_acting": 1.0,
        }


async def test_a_turn_that_was_cut_off_ends_the_episode():
    async with SteppedEpisode(DESK, DESK.tasks()[0]) as episode:
        await episode.start()
        moment = await episode.act({"content": "I was about to"}, finish_reason="length")
    assert moment.over
    assert episode.trajectory.status == "truncated"
    assert outcome(DESK, episode.trajectory)["success"] == 0.0


class Room:
    closed = 0

    async def reset(self, task: Task) -> str:
        return "You are in a room."

    async def observe(self, action: str) -> str | None:
        return None if action == "leave" else f"You {action}."

    async def close(self) -> None:
        type(self).closed += 1


ROOM = Scenario("room", environment=Room, tasks=[Task(user="Find the way out.")], held_out=[])


async def test_leaving_an_episode_before_its_end_closes_the_world():
    Room.closed = 0
    async with SteppedEpisode(ROOM, ROOM.tasks()[0]) as episode:
        await episode.start()
        moment = await episode.act({"content": "look"})
        assert moment.new == [{"role": "user", "content": "You look."}]
    assert Room.closed == 1
    with pytest.raises(SteppedEpisodeError, match="not over"):
        _ = episode.trajectory


async def test_a_world_that_fails_is_told_at_the_end():
    class Broken(Room):
        async def observe(self, action: str) -> str | None:
            raise OSError("the disk is full")

    broken = Scenario("broken", environment=Broken, tasks=[Task(user="Go.")], held_out=[], success=lambda found: True)
    async with SteppedEpisode(broken, broken.tasks()[0]) as episode:
        await episode.start()
        assert (await episode.act({"content": "look"})).over
    assert episode.trajectory.status == "failed"
    assert "the disk is full" in (episode.trajectory.status_reason or "")
    assert outcome(broken, episode.trajectory) == {}


async def test_agents_that_ask_at_once_are_shown_one_after_another():
    async def play(model: object, task: Task, episode: gavel.Episode) -> list[gavel.Trajectory]:
        both = [gavel.Agent(episode, name) for name in ("one", "two")]
        await asyncio.gather(*(agent.ask(f"Your turn, {agent.name}.") for agent in both))
        return [agent.trajectory for agent in both]

    pair = Scenario("pair", rollout=play, tasks=[Task(user="Talk.")], held_out=[])
    async with SteppedEpisode(pair, pair.tasks()[0]) as episode:
        moment = await episode.start()
        assert moment.new == [{"role": "user", "content": "Your turn, one."}]
        moment = await episode.act({"content": "first"})
        assert moment.new == [{"role": "user", "content": "Your turn, two."}]
        assert (await episode.act({"content": "second"})).over
    assert episode.trajectory.messages()[-1]["content"] == "first"


@pytest.mark.parametrize(
    "message", [{"content": ["part"]}, {"tool_calls": [{"id": "x"}]}, {"content": "", "tool_calls": "look"}]
)
async def test_a_message_that_is_none_is_refused_and_the_episode_goes_on(message: dict[str, object]):
    async with SteppedEpisode(ROOM, ROOM.tasks()[0]) as episode:
        await episode.start()
        with pytest.raises(SteppedEpisodeError):
            await episode.act(message)
        assert (await episode.act({"content": "leave"})).over
        with pytest.raises(SteppedEpisodeError, match="over"):
            await episode.act({"content": "leave"})
