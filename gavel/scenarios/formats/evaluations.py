"""Results of evaluation and rollout tools: promptfoo, DeepEval, ragas, NeMo Gym, Inspect.

    {"prompt": {"raw": "2 + 2?"}, "response": {"output": "4"}, "provider": {…}, "vars": {…}}         promptfoo
    {"input": "2 + 2?", "actualOutput": "4", "metricsData": [{…}]}                                   DeepEval
    {"user_input": "2 + 2?", "response": "4", "retrieved_contexts": ["…"]}                           ragas
    {"responses_create_params": {…}, "response": {…}, "reward": 1.0}                                 NeMo Gym
    {"id": 1, "epoch": 2, "input": "…", "target": "42", "messages": [{…}], "scores": {…}}            Inspect

Scores are metrics by their names; a single one is the independent reward. The expected answer becomes the `reference`;
retrieved passages, and the tools of a test case, become calls with results before the answer.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import chat
from gavel.scenarios.formats.fields import attempt, offered_tools, side, system_message, talk, without
from gavel.scenarios.formats.logs import read_request, read_response
from gavel.scenarios.formats.row import (
    Attempt,
    Format,
    Row,
    Source,
    as_json,
    as_list,
    as_number,
    first_line,
    first_of,
    is_list,
    is_object,
    tools,
    with_single_score,
)

_TELLING = ("equals", "similar", "factuality", "model-graded-factuality")
"""promptfoo's assertions whose value is the expected answer."""
_CALL_FAILED = 2
"""promptfoo's `failureReason` of a call that failed; 1 is an assertion's, which also fills `error`."""


def _read_promptfoo(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        value: Message = row.value
        prompt, provider, output = value["prompt"], value.get("provider"), value.get("response")
        test: Message = value.get("testCase") or {}
        output: Any = output.get("output") if is_object(output) else output
        asserted = [each for each in as_list(test.get("assert")) if is_object(each, "type", "value")]
        expected = (each["value"] for each in asserted if each["type"] in _TELLING and isinstance(each["value"], str))
        fields = {name: value.get(name) for name in ("testIdx", "vars", "score", "success")}
        fields |= {"prompt": prompt.get("label"), "description": test.get("description")}
        fields["provider"] = first_of(provider, "label", "id") if is_object(provider) else provider
        fields["reference"] = next(expected, None)
        more: dict[str, Any] = {"tools": offered_tools(prompt.get("config")), "metrics": value.get("namedScores")}
        if value.get("failureReason") == _CALL_FAILED or output is None:
            more |= {"status": "failed", "status_reason": first_line(value.get("error") or "it has no output")}
        answer = [] if output is None else talk(row, output, "assistant")
        fields = {name: each for name, each in fields.items() if each not in (None, "")}
        yield attempt(row, PROMPTFOO.name, talk(row, prompt["raw"], "user"), answer, fields, **more)


PROMPTFOO = Format(
    "promptfoo results",
    ("prompt", "provider", "testIdx", "vars"),
    lambda value: is_object(value, "prompt", "provider", "vars|testIdx|testCase") and is_object(value["prompt"], "raw"),
    _read_promptfoo,
)


_EARLIER = {
    **{"question": "user_input", "answer": "response"},
    **{"contexts": "retrieved_contexts", "ground_truth": "reference"},
}
"""The columns' names in ragas before 0.2."""
_FACTS = ("reference", "expected_output", "expected_outcome", "context", "reference_contexts")


def _read_cases(rows: Sequence[Row], source: Source, is_ragas: bool) -> Iterator[Attempt]:
    """DeepEval's test cases, in camel case (test runs) or snake case, and ragas' samples."""
    asked, answered = ("user_input", "response") if is_ragas else ("input", "actual_output")
    for row in rows:
        fields = {_snake(name): value for name, value in row.value.items()}
        if is_ragas and asked not in fields:
            fields = {_EARLIER.get(name, name): value for name, value in fields.items()}
        is_empty = fields.get(answered) is None if is_ragas else not fields.get(answered)
        fields = {name: value for name, value in fields.items() if value not in (None, "", [])}
        before = [*system_message(fields.pop("chatbot_role", None)), *_take(row, fields, asked, "user")]
        turns, used = as_list(fields.pop("turns", None)), list(_take_calls(fields))
        is_whole = is_ragas and any(each.get("role") == "assistant" for each in chat.messages(before, row.where)[0])
        if turns:
            said = [each for turn in turns if is_object(turn, "role") for each in _turn(row, turn)]
            prompt, answer = None, [*before, *said]
        elif is_whole:
            prompt, answer = None, before
        elif is_empty:
            source.leave_out(row, "sample without a response" if is_ragas else "test case without an output")
            continue
        else:
            prompt, answer = before, [*used, *_take(row, fields, answered, "assistant")]
        measured = [each for each in as_list(fields.pop("metrics_data", None)) if is_object(each, "name")]
        scores = {str(each["name"]): each.get("score") for each in measured}
        scores = without(fields, "reference") if is_ragas else scores
        numbers = {name: number for name, each in scores.items() if (number := as_number(each)) is not None}
        facts = [fact for name in _FACTS for fact in _listed(fields.get(name)) if fact]
        kept = without(fields, "context") | ({"reference": "\n\n".join(map(as_json, facts))} if facts else {})
        form = RAGAS.name if is_ragas else DEEPEVAL.name
        yield attempt(row, form, prompt, answer, kept, metrics=with_single_score(numbers))


def _turn(row: Row, turn: Message) -> Iterator[Message]:
    fields = {_snake(name): each for name, each in turn.items() if each is not None}
    yield from _take_calls(fields)
    yield from _take(row, fields, "content", fields["role"])


def _take(row: Row, fields: Message, name: str, role: str) -> list[Any]:
    """Takes a field's messages out of the row. Raises `RowError` for anything but text or messages."""
    value = fields.pop(name, [])
    return side(row, value, role, name) if value != [] else []


def _take_calls(fields: Message) -> Iterator[Message]:
    """Takes an assistant's retrievals and calls before its answer out of the fields."""
    passages = _listed(fields.pop("retrieval_context", None) or fields.pop("retrieved_contexts", None))
    called = [{"name": "retrieve", "output": "\n\n".join(map(as_json, passages))}] if passages else []
    for call in [*called, *as_list(fields.pop("tools_called", None))]:
        own = {_snake(name): each for name, each in call.items()} if is_object(call) else {"name": call}
        made = {"name": str(own.get("name")), "arguments": own.get("input_parameters")}
        yield {"role": "assistant", "content": None, "tool_calls": [made]}
        if own.get("output") is not None:
            yield {"role": "tool", "name": own.get("name"), "content": as_json(own["output"])}


def _listed(value: Any) -> list[Any]:
    return as_list(value) or ([value] if value else [])


def _snake(name: str) -> str:
    """`actualOutput` -> `actual_output`."""
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _is_test_case(value: Any) -> bool:
    if is_object(value, "input", "actualOutput|actual_output|metricsData|metrics_data"):
        return True
    return is_object(value, "turns", "metricsData|metrics_data|scenario|expectedOutcome") and is_list(value["turns"])


def _is_sample(value: Any) -> bool:
    if is_object(value, "user_input"):
        return is_object(value, "response|retrieved_contexts|reference") or is_list(value["user_input"])
    return is_object(value, "question", "answer", "contexts")


DEEPEVAL = Format(
    "DeepEval test cases", ("input", "actualOutput|actual_output"), _is_test_case, partial(_read_cases, is_ragas=False)
)
RAGAS = Format("ragas samples", ("user_input", "response"), _is_sample, partial(_read_cases, is_ragas=True))


_ASKED, _FAILURE, _TASK = "responses_create_params", "_ng_failure_class", "_ng_task_index"
_NOT_KEPT = (_ASKED, "response", "ng_trajectory", "ng_perf", "ng_model_call_capture", "ng_agent_observations")


def _read_rollouts(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    """NeMo Gym's rollouts, and those of its sidecar of failures.

    A masked sample, whose environment declares its reward invalid, counts as failed.
    """
    for row in rows:
        value: Message = row.value
        found, fields = read_response(value.get("response")), without(value, *_NOT_KEPT)
        answer = found.attempts[0] if found.attempts else []
        if answer and all(map(is_list, answer)):
            answer = max(answer, key=len)  # transitions, each of which repeats the conversation so far
        ended: dict[str, Any] = found.ended
        if found.problem or value.get("mask_sample") is True or _FAILURE in value:
            reason = first_of(value, "failure_reason", "_ng_failure_message", _FAILURE, "failure_kind")
            reason = first_line(reason or found.problem or "its sample is masked")
            ended = {"status": "failed", "status_reason": reason}
        if fields.get("expected_answer") is not None:
            fields.setdefault("reference", fields["expected_answer"])
        task = {"task": value[_TASK]} if _TASK in value else None
        before, offered = read_request(value[_ASKED]), offered_tools(value[_ASKED])
        if before or answer:
            yield attempt(row, NEMO_GYM.name, before or None, answer, fields, task=task, tools=offered, **ended)
        else:
            source.leave_out(row, "rollout without messages")


NEMO_GYM = Format(
    "NeMo Gym rollouts",
    (_ASKED, "response"),
    lambda value: is_object(value, _ASKED, f"response|{_FAILURE}") and is_object(value[_ASKED]),
    _read_rollouts,
    task="task index",
)


_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Correct, incorrect, partly correct, no answer."""
_ATTACHED = "attachment://"


def _read_inspect(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        sample: Message = row.value
        items = _attached(sample["messages"], sample.get("attachments") or {})
        items = items or [{"role": "user", "content": str(sample["input"])}]
        said = [_inspect_message(item) if is_object(item, "role") else item for item in items]
        fields = {name: sample[name] for name in ("id", "epoch", "target", "metadata") if sample.get(name) is not None}
        if sample["target"]:
            fields["reference"] = sample["target"]
        given: Message = sample.get("scores") or {}
        if is_object(older := sample.get("score"), "value"):  # logs of 2024 and earlier
            given = {"score": older, **given}
        events = (each for each in as_list(sample.get("events")) if is_object(each, "tools"))
        offered = next((tools(each["tools"]) for each in events if each.get("event") == "model"), None)
        metrics = with_single_score({name: _grade(score) for name, score in given.items()})
        more: dict[str, Any] = {"tools": offered, "metrics": metrics}
        if is_object(error := sample.get("error")):
            more |= {"status": "failed", "status_reason": first_line(error.get("message"))}
        elif is_object(limit := sample.get("limit")):
            more |= {"status": "truncated", "status_reason": f"limit: {limit.get('type')}"}
        yield attempt(row, INSPECT.name, None, said, fields, task={"id": sample["id"]}, **more)


def _attached(value: Any, attachments: Message) -> Any:
    """The value with its attachments (long texts, images), which the log stores separately, in place."""
    if isinstance(value, str) and value.startswith(_ATTACHED):
        return attachments.get(value.removeprefix(_ATTACHED), value)
    if is_list(value):
        return [_attached(each, attachments) for each in value]
    return {name: _attached(each, attachments) for name, each in value.items()} if is_object(value) else value


def _inspect_message(message: Message) -> Message:
    found = {name: message[name] for name in ("role", "content", "tool_calls", "tool_call_id") if message.get(name)}
    error = message.get("error")
    return {"content": error["message"] if is_object(error, "message") else "", **found}


def _grade(score: Any) -> Any:
    value = score.get("value") if is_object(score) else score
    return _GRADES.get(value, as_number(value)) if isinstance(value, str) else value


INSPECT = Format(
    "Inspect log",
    ("id", "epoch", "input", "target", "messages"),
    lambda value: is_object(value, "id", "epoch", "input", "target", "messages"),
    _read_inspect,
    task="sample id",
)


EVALUATIONS = (INSPECT, NEMO_GYM, PROMPTFOO, DEEPEVAL, RAGAS)
