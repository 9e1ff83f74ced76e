"""Spans in OTLP's JSON form: what OpenTelemetry's own messages take, and what they hold of an attempt."""

import base64
import json
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gavel.scenarios.formats.exported import Losses
from gavel.scenarios.formats.otel import requests
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.formats.attempts import PIXEL, both, hostile, stored, whole

NOW = 1_700_000_000_000_000_000


def spans(trajectory: Trajectory, losses: Losses | None = None) -> list[Any]:
    """The spans of an attempt, as protobuf reads them."""
    (request,) = requests(stored(trajectory), "desk", losses or Losses(), NOW)
    return parsed(request)


def parsed(request: dict[str, Any]) -> list[Any]:
    """OTLP's JSON writes ids as hexadecimal digits, protobuf's own as base64; all else is the same."""
    given = json.loads(json.dumps(request, allow_nan=False))
    (resource,) = given["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    for span in scope["spans"]:
        for name, size in (("traceId", 16), ("spanId", 8), ("parentSpanId", 8)):
            if name in span:
                raw = bytes.fromhex(span[name])
                assert len(raw) == size
                span[name] = base64.b64encode(raw).decode()
    found = ParseDict(given, ExportTraceServiceRequest())
    return list(found.resource_spans[0].scope_spans[0].spans)


def attributes(of: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}


def test_an_attempt_is_a_trace_of_agents_turns_and_tools():
    found = spans(whole())
    assert [span.name for span in found] == [
        "invoke_agent clerk",
        "chat desk",
        "execute_tool get_order",
        "chat desk",
        "invoke_agent searcher",
        "chat desk",
    ]
    root, first, tool, *_ = found
    assert [span.parent_span_id for span in found] == [b"", *[root.span_id] * 4, found[4].span_id]
    assert len({span.span_id for span in found}) == 6
    assert len({span.trace_id for span in found}) == 1
    assert all(span.start_time_unix_nano < span.end_time_unix_nano for span in found)
    assert root.start_time_unix_nano > NOW
    assert root.end_time_unix_nano > found[-1].end_time_unix_nano
    assert attributes(tool)["gen_ai.tool.call.result"] == "order A1"
    assert attributes(tool)["gen_ai.tool.call.id"] == "c1"
    assert first.kind == 3


def test_messages_have_the_conventions_form():
    root, first, _, last, *_ = map(attributes, spans(whole()))
    assert json.loads(root["gen_ai.system_instructions"]) == [{"type": "text", "content": "You run the desk."}]
    assert json.loads(first["gen_ai.tool.definitions"])[0]["function"]["name"] == "get_order"
    assert json.loads(first["gen_ai.input.messages"]) == [
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "See this."},
                {"type": "blob", "modality": "image", "mime_type": "image/png", "content": PIXEL.partition(",")[2]},
            ],
        }
    ]
    (said,) = json.loads(first["gen_ai.output.messages"])
    assert said["parts"] == [{"type": "tool_call", "id": "c1", "name": "get_order", "arguments": {"id": "A1"}}]
    assert [each.string_value for each in first["gen_ai.response.finish_reasons"].values] == ["tool_call"]
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (3, 2)
    assert [each.double_value for each in first["gavel.logprobs"].values] == [-0.1, -0.2]
    history = json.loads(last["gen_ai.input.messages"])
    assert history[-1]["parts"] == [{"type": "tool_call_response", "id": "c1", "response": "order A1"}]


def test_rewards_and_scores_are_evaluations_and_the_rest_is_kept():
    root = spans(whole())[0]
    told = {attributes(event)["gen_ai.evaluation.name"]: attributes(event) for event in root.events}
    assert {name: each["gen_ai.evaluation.score.value"] for name, each in told.items()} == {
        **{"reward": 0.75, "judge": 0.75, "success": 1.0, "turns": 2.0}
    }
    assert told["judge"]["gen_ai.evaluation.explanation"] == "Cites the order."
    kept = json.loads(attributes(root)["gavel.attempt"])
    assert kept["metadata"] == {"task_id": 7}
    assert kept["group"]["split"] == "train"


def test_a_hostile_attempt_is_a_failed_span_and_each_loss_is_named():
    losses = Losses()
    root, *others = spans(hostile(), losses)
    assert (root.status.code, root.status.message) == (2, "boom �")
    assert list(root.events) == []
    inputs = json.loads(attributes(others[-1])["gen_ai.input.messages"])
    assert inputs[0] == {"role": "user", "name": "bob", "parts": [{"type": "text", "content": "� hi \x00"}]}
    assert inputs[-1]["parts"][0] == {"type": "video", "url": "v.mp4"}
    assert inputs[1]["parts"][-1]["arguments"] == "not json"
    told = "\n".join(losses.notes())
    assert "not finite" in told
    assert "lone surrogate" in told


def test_what_nobody_answered_is_kept():
    root = spans(Trajectory(messages_and_choices=[{"role": "user", "content": "Hello?"}]))[0]
    (message,) = json.loads(attributes(root)["gavel.unanswered"])
    assert message["parts"] == [{"type": "text", "content": "Hello?"}]


def test_two_exports_have_ids_of_their_own():
    def ids(now: int) -> set[bytes]:
        return {span.trace_id for each in requests(both(), None, Losses(), now) for span in parsed(each)}

    assert len(ids(NOW)) == 2
    assert ids(NOW).isdisjoint(ids(NOW + 1))
