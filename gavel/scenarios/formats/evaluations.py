"""Results of evaluation tools: promptfoo's results, DeepEval's test cases and ragas' samples.

    {"prompt": {"raw": "2 + 2?"}, "response": {"output": "4"}, "provider": {…}, "testIdx": 0, "score": 1}
    {"input": "2 + 2?", "actualOutput": "4", "expectedOutput": "4", "toolsCalled": [{…}], "metricsData": [{…}]}
    {"user_input": "2 + 2?", "response": "4", "retrieved_contexts": ["…"], "reference": "4", "faithfulness": 0.5}

The expected answer becomes the `reference`. Retrieved passages, and the tools of a test case, become calls with results
before the answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import chat
from gavel.scenarios.formats.completions import side
from gavel.scenarios.formats.row import (
    Attempt,
    Format,
    Row,
    Source,
    as_json,
    as_list,
    as_message,
    as_number,
    first_line,
    is_list,
    is_object,
    tool_call,
    trajectory,
    with_single_score,
)
from gavel.scenarios.formats.row import tools as openai_tools
from gavel.scenarios.formats.text import cell

_ERROR = 2
"""promptfoo's `failureReason` of a call that failed; 1 is an assertion's, which also fills `error`."""
_TELLING = ("equals", "similar", "factuality", "model-graded-factuality")
"""Assertions whose value is the expected answer."""


def _read_promptfoo(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        value: Message = row.value
        test: Message = value.get("testCase") or {}
        config: Any = value["prompt"].get("config") or {}
        response: Any = value.get("response") or {}
        output = response.get("output") if is_object(response) else response
        before = chat.messages(_conversation(value["prompt"]["raw"], "user"), row.where)[0]
        answer = [] if output is None else chat.messages(_answer(output), row.where)[0]
        ended: dict[str, Any] = {}
        if value.get("failureReason") == _ERROR or output is None:
            ended = {"status": "failed", "status_reason": first_line(value.get("error") or "it has no output")}
        asserted = (each for each in as_list(test.get("assert")) if is_object(each, "type", "value"))
        expected = (each["value"] for each in asserted if each["type"] in _TELLING)
        provider = value.get("provider")
        fields = {
            "provider": (provider.get("label") or provider.get("id")) if is_object(provider) else provider,
            "prompt": value["prompt"].get("label"),
            **{name: value.get(name) for name in ("testIdx", "vars", "score", "success")},
            "description": test.get("description"),
            "reference": next((each for each in expected if isinstance(each, str)), None),
        }
        fields = {name: each for name, each in fields.items() if each not in (None, "")}
        metrics: Message = value.get("namedScores") or {}
        tools = openai_tools(config.get("tools")) if is_object(config) else None
        made = trajectory([*before, *answer], row.where, tools=tools, fields=fields, metrics=metrics, **ended)
        yield Attempt(made, row, PROMPTFOO.name, prompt=len(before))


def _conversation(value: Any, role: str) -> list[Any]:
    """Messages, also as their JSON text; any other text becomes one message of `role`."""
    items = cell(value) if isinstance(value, str) else value
    items = [items] if is_object(items, "role") else items
    if is_list(items) and items and all(is_object(each, "role|type") and "function" not in each for each in items):
        return items
    return as_message(value if isinstance(value, str) else as_json(value), role)


def _answer(output: Any) -> list[Any]:
    """promptfoo's record of an answer: a text, a value, a message, or the calls of one."""
    if is_list(output) and output and all(is_object(call, "function") for call in output):
        return [{"role": "assistant", "content": None, "tool_calls": [tool_call(call) for call in output]}]
    return _conversation(output, "assistant")


def _read_deepeval(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    """DeepEval's test runs (camel case), evaluation results and data sets (snake case)."""
    for row in rows:
        value: Message = row.value
        fields = {_snake(name): each for name, each in value.items() if each not in (None, "", [])}
        turns = fields.pop("turns", None)
        role = fields.pop("chatbot_role", None)
        given = _side(row, fields, "input", "user") if "input" in fields else []
        before: list[Message] = [*([{"role": "system", "content": role}] if role else []), *given]
        if is_list(turns):
            said = [*before, *(message for turn in turns if is_object(turn, "role") for message in _turn(row, turn))]
            prompt = None
        elif "actual_output" in fields:
            said = [*before, *_used(fields), *_side(row, fields, "actual_output", "assistant")]
            prompt = len(before)
        else:
            source.left_out["test case without an output"] += 1
            continue
        facts = fields.pop("context", None)
        expected = [fields.get("expected_output") or fields.get("expected_outcome"), *(_listed(facts))]
        if reference := "\n\n".join(_text(each) for each in expected if each):
            fields["reference"] = reference
        measured = [each for each in fields.pop("metrics_data", None) or () if is_object(each, "name")]
        kept = {name: each for name, each in fields.items() if name not in ("retrieval_context", "tools_called")}
        metrics = _metrics({str(each["name"]): each.get("score") for each in measured})
        made = trajectory(_with_ids(said), row.where, fields=kept, metrics=metrics)
        yield Attempt(made, row, DEEPEVAL.name, prompt=prompt)


def _turn(row: Row, turn: Message) -> Iterator[Message]:
    fields = {_snake(name): each for name, each in turn.items() if each is not None}
    yield from _used(fields)
    yield from _side(row, fields, "content", fields["role"])


def _side(row: Row, fields: Message, name: str, role: str) -> list[Message]:
    """Takes a field's messages out of the row. Raises `RowError` for anything but text or messages."""
    value = fields.pop(name, "")
    given = side(row, value if isinstance(value, str | list | dict) else as_json(value), role, name)
    return chat.messages(given, row.where)[0]


def _used(fields: Message) -> Iterator[Message]:
    """An assistant's retrievals and calls before its answer."""
    if passages := _listed(fields.get("retrieval_context")):
        yield from _called("retrieve", {}, "\n\n".join(map(_text, passages)))
    for call in fields.get("tools_called") or ():
        own = {_snake(name): each for name, each in call.items()} if is_object(call) else {"name": call}
        yield from _called(str(own.get("name")), own.get("input_parameters") or {}, own.get("output"))


def _called(name: str, arguments: Any, output: Any) -> Iterator[Message]:
    call = {"type": "function", "function": {"name": name, "arguments": as_json(arguments)}}
    yield {"role": "assistant", "content": None, "tool_calls": [call]}
    if output is not None:
        yield {"role": "tool", "name": name, "content": _text(output)}


def _with_ids(said: list[Message]) -> list[Message]:
    """The calls and results with ids that join them."""
    for number, message in enumerate(said):
        for call in message.get("tool_calls") or ():
            call["id"] = f"call_{number}"
        if message["role"] == "tool":
            message["tool_call_id"] = f"call_{number - 1}"
    return said


_EARLIER = {
    "question": "user_input",
    "answer": "response",
    "contexts": "retrieved_contexts",
    "ground_truth": "reference",
}
"""The columns' names in ragas before 0.2."""


def _read_ragas(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        value: Message = row.value
        is_earlier = "user_input" not in value
        renamed = {_EARLIER.get(name, name) if is_earlier else name: each for name, each in value.items()}
        fields = {name: each for name, each in renamed.items() if each not in (None, "")}
        asked = _side(row, fields, "user_input", "user")
        said = list(asked)
        answers = any(message.get("role") == "assistant" for message in asked)
        if not answers and renamed.get("response") is None:
            source.left_out["sample without a response"] += 1
            continue
        if not answers:
            used = _used({"retrieval_context": fields.get("retrieved_contexts")})
            said = _with_ids([*asked, *used, *_side(row, fields, "response", "assistant")])
        kept = {name: each for name, each in fields.items() if name != "retrieved_contexts"}
        facts = [kept.get("reference"), *_listed(kept.get("reference_contexts"))]
        if reference := "\n\n".join(_text(each) for each in facts if each):
            kept["reference"] = reference
        metrics = _metrics({name: each for name, each in kept.items() if name not in ("response", "reference")})
        made = trajectory(said, row.where, fields=kept, metrics=metrics)
        yield Attempt(made, row, RAGAS.name, prompt=None if answers else len(asked))


def _metrics(found: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among them."""
    return with_single_score({name: n for name, value in found.items() if (n := as_number(value)) is not None})


def _listed(value: Any) -> list[Any]:
    return as_list(value) or ([value] if value else [])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


def _snake(name: str) -> str:
    """`actualOutput` -> `actual_output`."""
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name)


def _is_test_case(value: Any) -> bool:
    if is_object(value, "input", "actualOutput|actual_output|metricsData|metrics_data"):
        return True
    return is_object(value, "turns", "metricsData|metrics_data|scenario|expectedOutcome") and is_list(value["turns"])


def _is_sample(value: Any) -> bool:
    if is_object(value, "user_input"):
        return is_object(value, "response|retrieved_contexts|reference") or is_list(value["user_input"])
    return is_object(value, "question", "answer", "contexts")


PROMPTFOO = Format(
    "promptfoo results",
    ("prompt", "provider", "testIdx", "vars"),
    lambda value: is_object(value, "prompt", "provider", "vars|testIdx|testCase") and is_object(value["prompt"], "raw"),
    _read_promptfoo,
)
DEEPEVAL = Format("DeepEval test cases", ("input", "actualOutput|actual_output"), _is_test_case, _read_deepeval)
RAGAS = Format("ragas samples", ("user_input", "response"), _is_sample, _read_ragas)
EVALUATIONS = (PROMPTFOO, DEEPEVAL, RAGAS)
