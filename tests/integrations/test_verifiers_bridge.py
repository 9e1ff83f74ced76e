"""verifiers' own environments as scenarios, over the released package."""

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("verifiers.v1", reason="make test-adapters installs verifiers")

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, ScenarioError, find_scenario
from tests.scenarios.scripts import scripted

pytestmark = [pytest.mark.adapters, pytest.mark.slow]

SUMS = '''
import openai
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult


class SumData(vf.TaskData):
    answer: str


class Sum(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, trace):
        return 0.5 * (trace.last_reply == self.data.answer)

    @vf.metric
    async def length(self, trace):
        return len(trace.last_reply)


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        for number in range(80):
            yield Sum(SumData(prompt=f"{number} + {number}?", answer=str(2 * number)), self.config.task)


class TwoTurns(vf.Harness[vf.HarnessConfig]):
    """Asks, and asks whether that is sure; a first answer of `crash` ends the program."""

    EXECUTES_CODE = NEEDS_CONTAINER = False
    APPENDS_SYSTEM_PROMPT = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        messages = [{"role": "user", "content": data.prompt}]
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            for more in ("Sure?", None):
                reply = await client.chat.completions.create(model=ctx.model, messages=messages)
                said = reply.choices[0].message
                if said.content == "crash":
                    return ProgramResult(3, "", "the program crashed")
                messages.append({"role": "assistant", "content": said.content})
                if more:
                    messages.append({"role": "user", "content": more})
        return ProgramResult(0, "", "")


__all__ = ["Sums", "TwoTurns"]
'''


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    (tmp_path / "sum_tasks.py").write_text(SUMS)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("sum_tasks", None)
    return find_scenario("verifiers:sum-tasks")


async def _add(request: ChatRequest) -> Message:
    number = int(request.messages[0]["content"].split()[0])
    return {"content": str(2 * number) if len(request.messages) > 1 else "I think so."}


ADDER = FunctionModel("adder", _add)


async def test_its_taskset_harness_and_rewards_are_played(sums: Scenario):
    assert {task.user for task in sums.tasks()}.isdisjoint(task.user for task in sums.tasks("held_out"))
    assert len(sums.tasks()) + len(sums.tasks("held_out")) == 80
    task = sums.tasks()[0]
    assert task.reference == f"The answer: {2 * int(task.user.split()[0])}"
    found = await rollout(ADDER, sums, task, seed=1)
    assert found.status == "finished", found.status_reason
    assert [message["role"] for message in found.messages()] == ["user", "assistant"] * 2
    assert len(list(found.choices())) == 2
    assert found.metrics["environment_reward"] == 1.0
    assert found.metrics["verifiers/right"] == 0.5
    assert found.metrics["verifiers/length"] == len(found.messages()[-1]["content"])
    assert sums.success is not None
    assert sums.success(found)
    assert found.reward is None
    wrong = await rollout(scripted("?"), sums, task)
    assert not sums.success(wrong)


async def test_a_program_that_crashes_fails_its_own_episode(sums: Scenario):
    async def crash(request: ChatRequest) -> Message:
        return {"content": "crash"}

    crashed, other = await asyncio.gather(
        rollout(FunctionModel("crash", crash), sums, sums.tasks()[0]), rollout(ADDER, sums, sums.tasks()[1])
    )
    assert crashed.status == "failed"
    assert "the program crashed" in (crashed.status_reason or "")
    assert other.status == "finished"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("verifiers:no-such-tasks", "cannot be loaded"),
        ("verifiers:sum-tasks?harnes=null", "harnes is no option"),
        ("verifiers:sum-tasks?config=[", "config.*JSON"),
        ("verifiers:sum-tasks?config=[1]", "config.*dictionary"),
        ("verifiers:sum-tasks?held_out=2", "held_out"),
        ("verifiers:sum-tasks?harness=bash", "runs commands that the model writes"),
    ],
)
def test_an_address_that_is_none_is_told(address: str, said: str, sums: Scenario):
    with pytest.raises(ScenarioError, match=said) as caught:
        find_scenario(address)
    assert caught.value.remedy
