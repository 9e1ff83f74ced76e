"""Turns as LiteLLM and OpenAI's other APIs give them become choices that a trajectory keeps, with their token ids."""

from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.responses import Response

from gavel.llm.providers import load_litellm
from gavel.scenarios.trajectory import Trajectory, as_item

EXACT = {"token_ids": [5, 6], "prompt_token_ids": [1, 2], "policy_version": 3}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def choice(**fields: Any) -> dict[str, Any]:
    return {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}, **fields}


def litellm_choice() -> Any:
    types = load_litellm().types.utils
    return types.Choices(**choice(provider_specific_fields=EXACT, message={"role": "assistant", "content": "hi"}))


def a_response(*output: dict[str, Any], **fields: Any) -> Response:
    return Response.construct(None, **{"object": "response", "status": "completed", "output": list(output), **fields})


MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
CALLED = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


def test_a_choice_of_litellm_keeps_its_token_ids() -> None:
    trajectory = Trajectory(messages_and_choices=[{"role": "user", "content": "hello"}, litellm_choice()])
    (kept,) = trajectory.choices()
    assert {name: getattr(kept, name) for name in EXACT} == EXACT
    assert trajectory.messages()[1] == {"role": "assistant", "content": "hi"}


def test_a_choice_that_is_appended_is_understood_too() -> None:
    trajectory = Trajectory()
    trajectory.messages_and_choices.append(litellm_choice())
    assert [kept.model_dump()["token_ids"] for kept in trajectory.choices()] == [[5, 6]]
    assert trajectory.messages() == [{"role": "assistant", "content": "hi"}]
    again = Trajectory.from_json(trajectory.to_json())
    assert [kept.model_dump()["policy_version"] for kept in again.choices()] == [3]


def test_a_whole_completion_is_its_choice() -> None:
    item = as_item({"object": "chat.completion", "choices": [choice(**EXACT)]})
    assert isinstance(item, Choice)
    assert item.model_dump()["token_ids"] == [5, 6]


@pytest.mark.parametrize(
    ("response", "message", "finish_reason"),
    [
        (a_response(MESSAGE), {"role": "assistant", "content": "hi"}, "stop"),
        (a_response(CALLED), {"role": "assistant", "content": "", "tool_calls": [CALL]}, "tool_calls"),
        (
            a_response({"type": "reasoning", "summary": [{"text": "well"}]}, MESSAGE, CALLED),
            {"role": "assistant", "content": "hi", "reasoning_content": "well", "tool_calls": [CALL]},
            "tool_calls",
        ),
        (a_response({"type": "web_search_call"}), {"role": "assistant", "content": ""}, "stop"),
        (
            a_response(MESSAGE).model_copy(update={"status": "incomplete"}),
            {"role": "assistant", "content": "hi"},
            "length",
        ),
    ],
)
def test_a_response_is_the_turn_that_it_says(response: Response, message: dict[str, Any], finish_reason: str) -> None:
    item = as_item(response)
    assert item.finish_reason == finish_reason
    trajectory = Trajectory(messages_and_choices=[response])  # pyright: ignore[reportArgumentType]
    assert trajectory.messages() == [message]


def test_a_message_object_is_a_message() -> None:
    assert as_item(ChatCompletionMessage(role="assistant", content="hi")) == {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize("item", [{"role": "user", "content": "hi"}, {"type": "mcp_call"}, 3, None, "text", ["a"]])
def test_all_else_stays_as_it_is(item: Any) -> None:
    assert as_item(item) is item
