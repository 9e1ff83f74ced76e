"""Turns of an API agent: asked again after a passing failure, and within a budget."""

import pytest

from gavel.llm.budget import Budget
from gavel.llm.chat_agent import ChatAgent
from gavel.llm.errors import BudgetError, UnknownModelError
from tests.endpoint import Endpoint, fails, says

MESSAGES = [{"role": "user", "content": "Hello."}]
USAGE = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}


@pytest.fixture
def model(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    monkeypatch.setenv("OPENAI_API_BASE", f"{endpoint.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("GAVEL_PRICES", '{"openai/agent": [1, 2]}')
    return endpoint


async def test_a_turn_that_fails_for_now_is_asked_for_again(model: Endpoint):
    model.script = [fails(503), fails(429), lambda _: says("Hello!", USAGE)]
    agent = ChatAgent("openai/agent")
    turn = await agent.turn(MESSAGES, [])
    assert turn.choices[0].message.content == "Hello!"
    assert agent.cost_usd == pytest.approx(0.002)
    assert len(model.requests) == 3


async def test_turns_end_with_the_budget(model: Endpoint):
    model.script = [lambda _: says("Hello!", USAGE)]
    budget = Budget(0.005)
    agent = ChatAgent("openai/agent", budget)

    async def talk() -> None:
        while len(model.requests) < 20:
            await agent.turn(MESSAGES, [], max_completion_tokens=1000)

    with pytest.raises(BudgetError):
        await talk()
    assert 1 <= len(model.requests) <= 3
    assert budget.spent_usd == pytest.approx(0.002 * len(model.requests))


def test_a_judge_that_goes_by_rules_is_no_agent():
    with pytest.raises(UnknownModelError, match="cannot act as an agent"):
        ChatAgent("gavel/stand-in")
