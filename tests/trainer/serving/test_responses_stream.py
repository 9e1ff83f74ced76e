"""What a streamed response says, event by event."""

from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gavel.trainer.serving.responses_api import ResponseStream, response
from tests.trainer.serving.chunked import chunks_of, completion_of, replies

REQUEST = {"model": "desk", "input": "Hello"}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


async def events_of(reply, **settings) -> list[dict]:
    stream = ResponseStream(REQUEST, "resp_1")
    return [event async for event in stream.events(chunks_of(reply, **settings))]


def without_ids(items: list[dict]) -> list[dict]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


@given(replies(), st.sampled_from(["stop", "tool_calls", "length"]), st.integers(1, 20))
async def test_a_streamed_response_ends_as_the_whole_one(reply, finish_reason, size):
    last = (await events_of(reply, size=size, finish_reason=finish_reason))[-1]["response"]
    whole = response(REQUEST, completion_of(reply, finish_reason), "resp_1")
    assert without_ids(last["output"]) == without_ids(whole["output"])
    assert last | {"output": []} == whole | {"output": []}


@given(replies(), st.integers(1, 20))
async def test_the_events_say_what_the_last_one_holds(reply, size):
    events = await events_of(reply, size=size)
    for number, event in enumerate(events):
        assert EVENT.validate_python(event).type == event["type"]
        assert event["sequence_number"] == number
    output = events[-1]["response"]["output"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    said: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            said[event["item_id"]] = said.get(event["item_id"], "") + event["delta"]
    for item in output:
        text = (
            item["arguments"] if item["type"] == "function_call" else "".join(part["text"] for part in item["content"])
        )
        assert said.get(item["id"], "") == text


@given(replies())
def test_a_whole_response_is_one_of_openai(reply):
    whole = response(REQUEST | {"tools": [], "metadata": {"a": "b"}}, completion_of(reply), "resp_1")
    parsed = Response.model_validate(whole)
    assert parsed.status == "completed"
    assert parsed.usage.total_tokens == 10
    assert parsed.output_text == (reply["content"] or "")


async def test_a_failure_is_numbered_like_any_event():
    stream = ResponseStream(REQUEST, "resp_1")
    events = [event async for event in stream.events(chunks_of({"role": "assistant", "content": "Well"}))]
    assert stream.failure("engine_stopped", "the engine has stopped", type="server_error") == {
        "type": "error",
        "code": "engine_stopped",
        "message": "the engine has stopped",
        "param": None,
        "sequence_number": len(events),
    }
