"""Scenarios over AgentGym's servers: every environment's wire, and what servers do wrong."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from gavel.integrations.agentgym.scenario import agentgym
from gavel.scenarios.chat_model import FunctionModel
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.trajectory import Trajectory
from tests.integrations.agentgym.env_servers import WIRES, EnvServer
from tests.limits import wait_until
from tests.scenarios.scripts import scripted

WINNING = {"sqlgym": "```sql\nsay {}\n```", "weather": 'say {} with Action Input: {{"a": 1}}'}


async def play(scenario: Scenario, model: FunctionModel, item: int = 0) -> Trajectory:
    return await rollout(model, scenario, scenario.tasks()[item], seed=1)


def texts(trajectory: Trajectory) -> list[str]:
    return [message.get("content", "") for message in trajectory.messages()]


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], EnvServer]]:
    """One running server of each kind, started when a test asks for it."""
    running: dict[str, EnvServer] = {}

    def server(name: str) -> EnvServer:
        if name not in running:
            running[name] = EnvServer(name).__enter__()
        return running[name]

    yield server
    for each in running.values():
        each.stop()


@pytest.mark.parametrize("name", WIRES)
async def test_each_environment_is_won_and_lost_over_its_own_wire(name: str, servers) -> None:
    scenario = agentgym(f"{name}+{servers(name).url}?tasks=5&held_out=2")
    for item in (3, 4):
        win, lose = WINNING.get(name, "say {}").format(item), WINNING.get(name, "say {}").format(99)
        if name == "searchqa":
            replies = "<answer>say 99</answer>", f"<answer>say {item}</answer>"
        else:
            replies = f"Thought: hm\nAction: {lose}", f"Thought: hm\nAction: {win}"
        won = await play(scenario, scripted(*replies), item)
        assert won.status == "finished", won.status_reason
        assert won.metrics["turns"] == 2
        assert won.metrics["success"] == 1.0
        assert won.metrics["environment_reward"] == 1.0
        assert won.metrics["raw_reward"] > 0
        first = texts(won)[1]
        assert f"The number is {item}." in first or name == "wordle"
        assert won.metadata["task"]["id"] == f"{name}-{item}"


@pytest.mark.parametrize(
    ("kind", "actions", "raw", "reward", "success"),
    [
        ("babyai", ("wait", "wait", "say 0"), pytest.approx(1 - 0.9 * 3 / 50), 1.0, 1.0),  # below 1 is a success
        ("sciworld", ("look around",), 50, pytest.approx(0.5), 0.0),  # a percentage, and never below 0
        ("sciworld", ("focus on wrong",), -100, 0.0, 0.0),
    ],
)
async def test_rewards_are_kept_raw_and_have_one_scale(kind, actions, raw, reward, success, servers) -> None:
    scenario = agentgym(f"{servers(kind).url}?tasks=5&held_out=2&turns={max(2, len(actions))}")
    played = await play(scenario, scripted(*(f"Action: {action}" for action in actions)))
    found = [played.metrics[name] for name in ("raw_reward", "environment_reward", "success")]
    assert found == [raw, reward, success]


async def test_a_reply_without_one_action_is_told_the_form_and_costs_no_step_of_the_server(servers) -> None:
    server = servers("textcraft")
    scenario = agentgym(f"{server.url}?tasks=5&held_out=2")
    before = server.count("/step")
    won = await play(
        scenario, scripted("I win!", "Action: a\nAction: b", "Thought: so\nAction: say 0\nObservation: You win.")
    )
    assert won.metrics["success"] == 1.0
    assert server.count("/step") == before + 1
    assert server.calls[-1] == ("/step", {"id": server.calls[-1][1]["id"], "action": "say 0"})
    assert texts(won)[3].startswith("Write one thought and one action")


async def test_an_error_about_an_action_is_told_to_the_agent_and_the_third_in_a_row_ends_the_episode() -> None:
    for kind in ("textcraft", "webshop"):
        with EnvServer(kind) as server:
            scenario = agentgym(f"{kind}+{server.url}?tasks=5&held_out=2")
            won = await play(scenario, scripted("Action: crash", "Action: crash", "Action: wait", "Action: say 0"))
            assert won.status == "finished"
            assert won.metrics["environment_errors"] == 2
            assert texts(won)[3].startswith("Error: ")
            lost = await play(scenario, scripted("Action: crash"))
            assert lost.status == "failed"
            assert "3 actions in a row" in (lost.status_reason or "")
            assert "success" not in lost.metrics


async def test_an_item_that_does_not_exist_fails_its_episode_alone_with_the_server_s_words() -> None:
    with EnvServer("textcraft") as server:
        scenario = agentgym(f"{server.url}?tasks=999-1000&held_out=0-1")
        good, bad = await asyncio.gather(
            play(scenario, scripted("Action: say 999"), 0), play(scenario, scripted("Action: say 1"), 1)
        )
        assert good.metrics["success"] == 1.0
        assert bad.status == "failed"
        assert "/reset to item 1000: list index out of range" in (bad.status_reason or "")


async def test_an_environment_is_used_again_and_episodes_at_once_have_their_own() -> None:
    with EnvServer("babyai") as server:
        scenario = agentgym(f"{server.url}?tasks=40&held_out=2")
        for _ in range(3):
            assert (await play(scenario, scripted("Action: say 0"))).metrics["success"] == 1.0
        assert server.count("/create") == 1
        server.delay = 0.01
        all_at_once = await asyncio.gather(*(play(scenario, scripted(f"Action: say {n}"), n) for n in range(32)))
        assert [each.metrics["success"] for each in all_at_once] == [1.0] * 32
        assert server.count("/create") == 32
        assert len(server.games) == 32


async def test_a_server_that_holds_eight_environments_serves_forty_episodes() -> None:
    with EnvServer("sqlgym") as server:
        scenario = agentgym(f"sqlgym+{server.url}?tasks=40&held_out=2")
        played = await asyncio.gather(
            *(play(scenario, scripted(f"Action: ```sql\nsay {n}\n```"), n) for n in range(40))
        )
        assert [each.metrics.get("success") for each in played] == [1.0] * 40
        assert len(server.games) == 8


@pytest.mark.slow
async def test_a_server_that_dies_costs_the_running_episodes_and_the_next_ones_go_on_when_it_is_back() -> None:
    with EnvServer("alfworld") as server:
        scenario = agentgym(f"{server.url}?tasks=5&held_out=2&timeout=20")
        assert (await play(scenario, scripted("Action: say 0"))).metrics["success"] == 1.0
        server.stop()
        lost = await play(scenario, scripted("Action: say 0"))
        assert lost.status == "failed"
        assert "is lost" in (lost.status_reason or "")
        assert "success" not in lost.metrics
        back = EnvServer("alfworld")
        back.port = server.port
        with back:
            assert (await play(scenario, scripted("Action: say 0"))).metrics["success"] == 1.0


async def test_a_server_that_is_slow_fails_the_episode_in_time_and_its_environment_is_not_used_again() -> None:
    with EnvServer("sciworld") as server:
        scenario = agentgym(f"{server.url}?tasks=5&held_out=2")
        assert (await play(scenario, scripted("Action: say 0"))).metrics["success"] == 1.0
        env_server = scenario.environment.args[0]  # type: ignore[union-attr]
        env_server.seconds, server.delay = 0.5, 3
        began = time.monotonic()
        lost = await play(scenario, scripted("Action: say 0"))
        assert time.monotonic() - began < 60
        assert lost.status == "failed"
        assert "within 0.5 s" in (lost.status_reason or "")
        env_server.seconds, server.delay = 60, 0
        assert (await play(scenario, scripted("Action: say 0"))).metrics["success"] == 1.0
        assert len(server.games) > 1


@pytest.mark.parametrize(
    ("path", "answer", "told"),
    [
        ("/step", {"observation": "x", "done": False}, "without reward and done"),
        ("/step", {"observation": "x", "reward": 10**400, "done": False}, "no finite number"),
        ("/step", {"observation": "x", "reward": 1, "done": "no"}, "neither true nor false"),
        ("/step", {"reward": 1, "done": True}, "without an observation"),
        ("/step", None, "without reward and done"),
        *(("/reset", page, "no JSON") for page in ("<html>proxy</html>", "", "[" * 100_000)),
        ("/step", 307, "leads elsewhere"),
        ("/step", 401, "another key"),
        ("/step", 404, "not offered"),
        ("/step", 422, "HTTP 422"),
    ],
)
async def test_an_answer_of_another_form_fails_the_episode_without_a_reward(path: str, answer: Any, told: str):
    def fail(asked: str) -> web.Response | None:
        if asked != path:
            return None
        if isinstance(answer, int):
            return web.Response(status=answer, headers={"Location": "/"})
        return web.Response(text=answer) if isinstance(answer, str) else web.json_response(answer)

    with EnvServer("textcraft") as server:
        scenario = agentgym(f"{server.url}?tasks=5&held_out=2")
        server.fail = fail
        lost = await play(scenario, scripted("Action: say 0"))
    assert lost.status == "failed"
    assert told in (lost.status_reason or "")
    assert not {"success", "environment_reward"} & lost.metrics.keys()


async def test_environments_that_are_left_are_closed_where_the_server_can() -> None:
    for kind, closed in (("textcraft", True), ("babyai", False)):
        with EnvServer(kind) as server:
            scenario = agentgym(f"{server.url}?tasks=5&held_out=2")
            await asyncio.gather(*(play(scenario, scripted("Action: say 0")) for _ in range(3)))
            env_server = scenario.environment.args[0]  # type: ignore[union-attr]
            assert len(server.games) == 3
            await asyncio.to_thread(env_server.close)
            assert len(server.games) == (0 if closed else 3)
            assert env_server.closes == closed


async def test_the_task_the_available_actions_and_the_allowed_words_are_shown(servers) -> None:
    for kind, shown in [
        ("sciworld", "Your task is to count.\nThe number is 0."),
        ("alfworld", "Available actions: look, say 3"),
        ("wordle", "Allowed words: c r a n e, s h i r e"),
    ]:
        played = await play(agentgym(f"{servers(kind).url}?tasks=5&held_out=2"), scripted("Action: say 0"))
        assert texts(played)[1].endswith(shown)


async def test_an_episode_that_is_cancelled_leaves_nothing_behind(servers) -> None:
    server = servers("babyai")
    scenario = agentgym(f"{server.url}?tasks=5&held_out=2")
    server.calls.clear()
    server.delay = 0.5
    task = asyncio.create_task(play(scenario, scripted("Action: wait")))
    await asyncio.to_thread(wait_until, lambda: server.count("/step") > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    server.delay = 0.0
    env_server = scenario.environment.args[0]  # type: ignore[union-attr]
    assert not env_server._leased
    assert not env_server._idle  # a step may still be under way in it
    assert (await play(scenario, scripted("Thought: so. Action: say 0"))).metrics["success"] == 1.0
