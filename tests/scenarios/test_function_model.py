from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task


def ping(text: str) -> str:
    """Ping."""
    return text


async def test_a_function_gets_what_a_rollout_asks_for_and_its_messages_are_turns():
    asked: list[ChatRequest] = []

    async def reply(request: ChatRequest) -> Message:
        asked.append(request)
        if len(asked) == 1:
            function = {"name": "ping", "arguments": '{"text": "hello"}'}
            return {"tool_calls": [{"id": "1", "type": "function", "function": function}]}
        return {"content": "Done."}

    scenario = Scenario("pings", system="Ping.", tools=[ping], tasks=[Task(user="Go.")], held_out=0)
    episode = await rollout(FunctionModel("pinger", reply), scenario, scenario.tasks()[0], seed=5, max_tokens=9)
    assert [(each.seed, each.max_tokens, each.temperature) for each in asked] == [(5, 9, 1.0), (6, 9, 1.0)]
    assert asked[0].tools == scenario.toolbox.schemas
    assert [message["role"] for message in asked[1].messages] == ["system", "user", "assistant", "tool"]
    assert [choice.finish_reason for choice in episode.choices()] == ["tool_calls", "stop"]
    assert episode.messages()[-1]["content"] == "Done."
