"""Results of evaluation tools, tables whose columns a user names, and logs of requests with their responses."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.formats.fields import Columns
from gavel.scenarios.formats.reading import Reading, read_file
from gavel.scenarios.formats.row import RowError


def reading_of(folder: Path, content: Any, columns: Columns | None = None, by: str | None = None) -> Reading:
    (folder / "results").write_text(content if isinstance(content, str) else json.dumps(content))
    return read_file(folder / "results", by, columns)


def last(reading: Reading) -> list[Any]:
    """What the members of the first group say last."""
    return [each.messages()[-1]["content"] for each in reading.groups[0]]


def said(reading: Reading, group: int = 0, member: int = 0) -> list[tuple[str, Any]]:
    messages = reading.groups[group].trajectories[member].messages()
    return [(each["role"], each["content"] or each["tool_calls"][0]["function"]["name"]) for each in messages]


def rollout(text: str | None, reward: float = 1.0, **more: Any) -> dict[str, Any]:
    items = [
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
    ]
    asked = {"input": [{"role": "user", "content": "What is it?"}], "tools": []}
    response = {"object": "response", "status": "completed", "output": items if text else []}
    return {
        **{"responses_create_params": asked, "response": response, "reward": reward, "expected_answer": "42"},
        **{"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "simple_agent"}},
        **more,
    }


def test_rollouts_of_nemo_gym_are_grouped_by_task_and_have_failed_without_a_measurement(tmp_path: Path) -> None:
    rows = [rollout("42"), rollout("43", 0.0), rollout("44", _ng_task_index=1)]
    reading = reading_of(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    assert reading.summary == "reads as: NeMo Gym rollouts, 3 rows in 2 groups by task index"
    assert said(reading) == [("user", "What is it?"), ("assistant", "look"), ("tool", "42"), ("assistant", "42")]
    assert [each.metrics["independent_reward"] for each in reading.groups[0]] == [1, 0]
    assert reading.groups[0].metadata["reference"] == "42"
    masked = rollout("42", mask_sample=True, failure_reason="the sandbox was lost")
    failed = {name: each for name, each in rollout(None).items() if name not in ("response", "reward")}
    (group,) = reading_of(tmp_path, [masked, failed | {"_ng_failure_class": "agent_run_error"}, rollout(None)]).groups
    assert [each.status for each in group] == ["failed"] * 3
    assert [each.status_reason for each in group][:2] == ["the sandbox was lost", "agent_run_error"]


def result(output: Any, prompt: str = "2 + 2?", **more: Any) -> dict[str, Any]:
    return {
        **{"prompt": {"raw": prompt, "label": "{{q}}", "config": {}}, "vars": {"q": "2 + 2?"}, "testIdx": 0},
        **{"provider": {"id": "openai:m", "label": ""}, "response": {"output": output}, "promptIdx": 0},
        **{"score": 0.5, "success": False, "failureReason": 1, "error": "Expected output to equal 4", "cost": 0},
        "namedScores": {"brief": 1},
        "testCase": {"assert": [{"type": "contains", "value": "4"}, {"type": "equals", "value": "four"}]},
        **more,
    }


def test_results_of_promptfoo_are_attempts_of_their_providers(tmp_path: Path) -> None:
    chat = json.dumps([{"role": "system", "content": "Count."}, {"role": "user", "content": "2 + 2?"}])
    calls = [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    rows = [result("4"), result({"answer": 4}), result(calls, chat), result("[1]", chat)]
    failed = result(None, failureReason=2, error="Error: no key", response={"error": "no key"})
    reading = reading_of(tmp_path, {"evalId": "e", "results": {"version": 3, "results": [*rows, failed]}, "config": {}})
    assert reading.summary == "reads as: promptfoo results, 5 rows in 2 groups by opening messages"
    assert said(reading) == [("user", "2 + 2?"), ("assistant", "4")]
    assert said(reading, 0, 1)[-1] == ("assistant", '{"answer": 4}')
    assert said(reading, 1) == [("system", "Count."), ("user", "2 + 2?"), ("assistant", "add")]
    assert said(reading, 1, 1)[-1] == ("assistant", "[1]")
    assert [each.status for each in reading.groups[0]] == ["finished", "finished", "failed"]
    first = reading.groups[0].trajectories[0]
    assert (first.metrics["independent_reward"], first.metrics["brief"]) == (0.5, 1)
    assert first.metadata["reference"] == "four"


CASE = {
    **{"name": "t", "input": "Capital?", "actualOutput": "Paris", "expectedOutput": "Paris", "context": ["A fact."]},
    **{"retrievalContext": ["one", "two"], "toolsCalled": [{"name": "search", "output": "found"}], "success": True},
    "metricsData": [{"name": "Relevancy", "score": 0.75, "success": True}],
}
TURNS = [
    {"role": "user", "content": "Hi", "order": 0},
    {"role": "assistant", "content": "Hello", "retrieval_context": ["one"], "tools_called": None},
]


def test_a_test_run_of_deepeval_is_read_with_what_was_retrieved_and_called(tmp_path: Path) -> None:
    run = {"testCases": [CASE, {**CASE, "actualOutput": "Lyon"}], "conversationalTestCases": [], "metricsScores": []}
    reading = reading_of(tmp_path, run)
    assert reading.summary == "reads as: DeepEval test cases, 2 rows in 1 group by opening messages"
    assert said(reading, 0, 1) == [
        *[("user", "Capital?"), ("assistant", "retrieve"), ("tool", "one\n\ntwo")],
        *[("assistant", "search"), ("tool", "found"), ("assistant", "Lyon")],
    ]
    assert reading.groups[0].metadata["reference"] == "Paris\n\nA fact."
    assert reading.groups[0].trajectories[0].metrics["independent_reward"] == 0.75
    for scenario in ({"scenario": "greets", "expectedOutcome": "is greeted"}, {"metrics_data": []}):
        talk = {"name": "c", "turns": TURNS, "input": None, "actual_output": None, **scenario}
        roles = [role for role, _ in said(reading_of(tmp_path, {"test_results": [talk]}))]
        assert roles == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(("asked", "answered"), [("user_input", "response"), ("prompt", "completion")])
def test_a_table_by_columns_is_its_rows_and_other_objects_are_refused(
    tmp_path: Path, asked: str, answered: str
) -> None:
    reading = reading_of(tmp_path, {asked: ["Capital?", "Capital?"], answered: ["Paris", "Lyon"]})
    assert [said(reading, 0, n)[-1][1] for n in range(2)] == ["Paris", "Lyon"]
    with pytest.raises(RowError, match="neither text nor messages"):
        reading_of(tmp_path, {asked: {"a": "Capital?"}, answered: {"a": "Paris"}})


def test_samples_of_ragas_are_read(tmp_path: Path) -> None:
    table = "user_input,retrieved_contexts,response,reference,faithfulness\n"
    table += """Capital?,"['Paris is it.', 'b']",Paris,Paris,0.5\nCapital?,['c'],"[1]",Paris,\n"""
    reading = reading_of(tmp_path, table)
    assert reading.summary == "reads as: ragas samples, 2 rows in 1 group by opening messages"
    retrieved = [("assistant", "retrieve"), ("tool", "Paris is it.\n\nb")]
    assert said(reading) == [("user", "Capital?"), *retrieved, ("assistant", "Paris")]
    assert said(reading, 0, 1)[-1] == ("assistant", "[1]")
    assert [each.metrics for each in reading.groups[0]] == [{"faithfulness": 0.5, "independent_reward": 0.5}, {}]


TABLE = 'id,ask,ours,theirs,answer\n7,Q,"{""a"": 1}",b,gold\n8,Q,c,d,gold\n'


def test_columns_that_a_user_names_hold_prompt_and_answers(tmp_path: Path) -> None:
    reading = reading_of(tmp_path, TABLE, Columns("ask", ("ours", "theirs")))
    assert last(reading) == ['{"a": 1}', "b", "c", "d"]
    assert [each.metadata["answer_column"] for each in reading.groups[0]] == ["ours", "theirs"] * 2
    reading = reading_of(tmp_path, TABLE, Columns("ask", ("answer",)), "id")
    assert [len(group) for group in reading.groups] == [1, 1]
    assert "answer" not in reading.groups[0].metadata


def test_nested_columns_and_answers_that_are_no_text_are_read(tmp_path: Path) -> None:
    rows = [{"in": {"q": "Q"}, "out": out} for out in (4, {"a": 1}, None)]
    reading = reading_of(
        tmp_path, [*rows, {"in": {"q": None}, "out": "x"}, {"in": {"q": "Q"}}], Columns("in.q", ("out",))
    )
    assert last(reading) == ["4", '{"a": 1}', "Q", "Q"]
    assert [each.status for each in reading.groups[0]] == ["finished", "finished", "failed", "failed"]
    assert "1 × row with an empty prompt" in reading.notes[0]
    assert f"2 of 5 attempts failed, and get no score. First: {tmp_path / 'results'}[2]" in reading.notes[1]
    assert "in JSON" in reading.notes[2]
    for out in ([{"t": "x"}], '[{"t": "x"}]', "[{'t': 'x'}]"):
        reading = reading_of(tmp_path, [{"in": [{"q": "Q"}], "out": out}], columns=Columns("in.0.q", ("out.0.t",)))
        assert said(reading) == [("user", "Q"), ("assistant", "x")]


@pytest.mark.parametrize(
    ("given", "answers", "beside"),
    [
        ({"text": "one", "score": 1}, ["one"], {"score": 1}),
        ([{"generated_text": "one"}], ["one"], {}),
        ([{"answer": "one", "rank": 1}, {"answer": "two", "rank": 2}], ["one", "two"], {"rank": 1}),
        ([[{"generated_text": "one", "index": 3}], [{"generated_text": "two"}]], ["one", "two"], {"index": 3}),
        (["one", "two", None], ["one", "two", "Q"], {}),
        ({"response": [{"role": "assistant", "content": "one"}], "label": True}, ["one"], {"label": True}),
        ([{"role": "assistant", "content": text} for text in ("one", "two")], ["one", "two"], {}),
    ],
)
def test_an_object_in_a_column_of_answers_is_what_its_text_says(
    tmp_path: Path, given: Any, answers: list[str], beside: dict[str, Any]
) -> None:
    reading = reading_of(tmp_path, [{"q": "Q", "a": given}], columns=Columns("q", ("a",)))
    assert last(reading) == answers
    metadata = reading.groups[0].trajectories[0].metadata
    assert {name: value for name, value in metadata.items() if name != "answer_column"} == beside
    assert not any("JSON" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"city": "Bern", "canton": {"name": "Bern"}}, "city, canton"),
        ([{"name": "Bern"}, {"name": "Thun"}], "name"),
        ('{"text": "Bern", "score": 1}', "text, score"),
    ],
)
def test_an_object_that_is_an_answer_is_told(tmp_path: Path, given: Any, told: str) -> None:
    reading = reading_of(tmp_path, [{"q": "Q", "a": given}], columns=Columns("q", ("a",)))
    assert json.loads(last(reading)[0]) == (json.loads(given) if isinstance(given, str) else given)
    assert f"({told})" in reading.notes[0]


ASKED = {"role": "user", "content": "Where?"}
CHAT = {"model": "m", "messages": [ASKED]}
BEDROCK = {"messages": [{"role": "user", "content": [{"text": "Where?"}]}]}
GEMINI = {"contents": [{"parts": [{"text": "Where?"}]}]}


def completion(text: str, why: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": why, "message": {"role": "assistant", "content": text}}]}


def claude(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}


def candidate(text: str) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}]}


def converse(text: str) -> dict[str, Any]:
    return {"output": {"message": {"role": "assistant", "content": [{"text": text}]}}, "stopReason": "end_turn"}


def response(text: str) -> dict[str, Any]:
    return {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]}


LOGS: dict[str, Any] = {
    "proxy": lambda text: {"request": CHAT, "response": completion(text)},
    "proxy, as text": lambda text: {"request": json.dumps(CHAT), "response": json.dumps(completion(text))},
    "proxy, with bodies": lambda text: {"request": {"body": CHAT}, "response": {"body": completion(text)}},
    "Anthropic": lambda text: {"request": CHAT, "response": claude(text)},
    "Responses": lambda text: {"request": {"input": "Where?"}, "response": response(text)},
    "LiteLLM": lambda text: {"id": text, "call_type": "acompletion", **CHAT, "response": completion(text)},
    "Vertex batch": lambda text: {"status": "", "request": GEMINI, "response": candidate(text)},
    "text completions": lambda text: {"request": {"prompt": ["Where?"]}, "response": {"choices": [{"text": text}]}},
    "a text completion beside its prompt": lambda text: {"prompt": "Where?", "response": {"choices": [{"text": text}]}},
    "a text completion with its prompt": lambda text: {"id": text, "prompt": "Where?", "choices": [{"text": text}]},
    "Bedrock batch": lambda text: {"recordId": text, "modelInput": CHAT, "modelOutput": claude(text)},
    "Bedrock log": lambda text: {"input": {"inputBodyJson": BEDROCK}, "output": {"outputBodyJson": converse(text)}},
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_calls_with_one_request_are_a_group(tmp_path: Path, log: Any) -> None:
    reading = reading_of(tmp_path, [log(text) for text in ("one", "two")])
    assert reading.summary == "reads as: requests with responses, 2 rows in 1 group by opening messages"
    assert [each.messages()[0]["content"] for each in reading.groups[0]] == ["Where?", "Where?"]
    assert last(reading) == ["one", "two"]
    assert reading.notes == []
    requests = [{"custom_id": str(n), "params": CHAT} for n in range(2)]
    results = [{"custom_id": str(n), "result": {"type": "succeeded", "message": claude(str(n))}} for n in range(2)]
    assert reading_of(tmp_path, [*requests, *results]).summary.endswith("in 1 group by opening messages")


@pytest.mark.parametrize("body", [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}, None, {"choices": []}])
def test_failed_requests_are_counted(tmp_path: Path, body: Any) -> None:
    reading = reading_of(tmp_path, [{"request": CHAT, "response": it} for it in (completion("one", "length"), body)])
    assert [each.status for group in reading.groups for each in group] == ["truncated"]
    assert reading.notes[0].startswith("left out: 1 × request failed (")


def test_choices_of_a_text_completion_answer_each_its_prompt(tmp_path: Path) -> None:
    choices = [{"index": n, "text": str(n)} for n in range(4)]
    rows = [{"request": {"prompt": prompt}, "response": {"choices": choices}} for prompt in (["A?", "B?"], [1, 2])]
    rows.append({"request": {"prompt": "C?"}, "response": {"choices": [{"index": 0, "logits": []}]}})
    reading = reading_of(tmp_path, rows)
    assert [[said(reading, g, m) for m in range(2)] for g in range(2)] == [
        [[("user", "A?"), ("assistant", "0")], [("user", "A?"), ("assistant", "1")]],
        [[("user", "B?"), ("assistant", "2")], [("user", "B?"), ("assistant", "3")]],
    ]
    assert "4 × request whose prompt is token ids" in reading.notes[0]
    assert "1 × response not read" in reading.notes[1]


TALK = [
    {"user_id": 7, "session_id": name, "role": role, "content": "x", "timestamp": n}
    for name in "ab"
    for n, role in enumerate(["user", "assistant"])
]


OTHERS = [{"session_id": each["session_id"], "sender": each["role"], "message": "It is."} for each in TALK]
NESTED = [{"session_id": each["session_id"], "type": each["role"], "message": each} for each in TALK]


@pytest.mark.parametrize(
    ("form", "rows"),
    [("lines", TALK), ("array", TALK), ("table", TALK), ("lines", OTHERS), ("array", OTHERS), ("lines", NESTED)],
)
def test_messages_as_rows_are_refused_with_their_conversations_column(
    tmp_path: Path, form: str, rows: list[dict[str, Any]]
) -> None:
    text = "".join(json.dumps(each) + "\n" for each in rows) if form == "lines" else json.dumps(rows)
    if form == "table":
        text = "\n".join([",".join(rows[0]), *(",".join(map(str, each.values())) for each in rows)])
    with pytest.raises(RowError, match="messages as rows") as error:
        reading_of(tmp_path, text)
    assert "by its session_id:" in error.value.remedy


@pytest.mark.parametrize("ids", ["uaua", "1234", "cccc"])
def test_a_list_of_messages_with_ids_is_one_conversation(tmp_path: Path, ids: str) -> None:
    messages = [{**each, "session_id": None, "user_id": name} for each, name in zip(TALK, ids, strict=True)]
    assert len(said(reading_of(tmp_path, messages))) == 4


def test_a_page_of_a_dataset_with_cells_that_are_cut_off_is_refused(tmp_path: Path) -> None:
    rows = [{"row_idx": n, "row": {"prompt": "Q", "completion": str(n)}, "truncated_cells": []} for n in range(2)]
    assert reading_of(tmp_path, {"features": [], "rows": rows}).notes == []
    rows[1]["truncated_cells"] = ["completion"]
    with pytest.raises(RowError, match=r"rows\[1\] has cells that were cut off .*: completion"):
        reading_of(tmp_path, {"features": [], "rows": rows})


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ({"input": "Where?", "gts": "here", "score": 0.5, "step": 1}, "Where?"),
        ({"instruction": "Where?", "input": ""}, "Where?"),
        ({"instruction": "Sum up.", "input": "A text."}, "Sum up.\n\nA text."),
        ({"input": [ASKED], "expected": None, "span_attributes": {"type": "llm"}}, "Where?"),
        ({"input": {"question": "Where?"}}, "Where?"),
        ({"input": json.dumps({"messages": [ASKED]})}, "Where?"),
    ],
)
def test_inputs_are_what_was_asked(tmp_path: Path, row: dict[str, Any], asked: str) -> None:
    reading = reading_of(tmp_path, [{**row, "output": text} for text in ("one", "two")])
    assert reading.summary == "reads as: inputs and outputs, 2 rows in 1 group by opening messages"
    assert [[m["content"] for m in each.messages()] for each in reading.groups[0]] == [[asked, "one"], [asked, "two"]]
