"""Files of every format are recognised by what they hold, told in one line, and nothing in them is lost in silence.

Standard input, pipes, several files and directories are read like one file.

The files in `data/` were written by their own libraries, with made-up content: `verifiers.jsonl` by
`verifiers.utils.eval_utils.save_to_disk` (0.1.9), `verifiers_traces.jsonl` by `verifiers.v1`'s `write_episode` (0.4),
`inspect.eval` and `.json` by `inspect_ai.log.write_eval_log` from an evaluation with `mockllm`, `langsmith.jsonl` from
the runs of `langchain_core`'s tracer (1.x, a fake model), `langfuse.json` by the models of Langfuse's API client (5.0).
"""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import sys
import tarfile
import threading
import zipfile
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from gavel.base.extras import install_line
from gavel.scenarios.formats.fields import Columns
from gavel.scenarios.formats.reading import Reading, read_file
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.scenarios.truth import with_truth_of_rows
from tests.judge.groups import desk, saying

DATA = Path(__file__).parent / "data"
SYSTEM = {"role": "system", "content": "You run a help desk."}
ANSWER = {"role": "assistant", "content": "It is on its way."}
ASK, HERE = {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here."}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up_order", "arguments": '{"order_id": "7"}'}}


def ask(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Where is order {number}?"}


CONVERSATION = [SYSTEM, ask(7), ANSWER]
ROWS = [{"messages": [SYSTEM, ask(number), ANSWER | {"content": str(n)}]} for n, number in enumerate([7, 8, 7])]
SUMMARY = "reads as: OpenAI messages, 3 rows in 2 groups by opening messages"


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def reading_of(folder: Path, *rows: Any, columns: Columns | None = None) -> Reading:
    return read_file(written(folder / "rows.jsonl", *rows), columns=columns)


def messages_in(reading: Reading) -> list[list[dict[str, Any]]]:
    """The messages of each member of the first group."""
    return [each.messages() for each in reading.groups[0]]


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("verifiers.jsonl", "reads as: verifiers results, 4 rows in 2 groups by example_id"),
        ("verifiers_traces.jsonl", "reads as: verifiers traces, 4 rows in 2 groups by task"),
        ("inspect.eval", "reads as: Inspect log, 4 rows in 2 groups by sample id"),
        ("inspect.json", "reads as: Inspect log, 4 rows in 2 groups by sample id"),
        ("langsmith.jsonl", "reads as: LangSmith runs, 10 rows in 2 groups by opening messages"),
        ("langfuse.json", "reads as: Langfuse export, 10 rows in 2 groups by opening messages"),
    ],
)
def test_files_that_their_own_libraries_wrote_are_read(name: str, summary: str) -> None:
    reading = read_file(DATA / name)
    assert reading.summary == summary
    assert [len(group) for group in reading.groups] == [2, 2]
    first = reading.groups[0].trajectories[0]
    system, asked, called, result, said = first.messages()
    assert [system["content"], asked["content"]] == [SYSTEM["content"], ask(7)["content"]]
    (call,) = called["tool_calls"]
    assert call["function"]["name"] == "look_up_order"
    assert json.loads(call["function"]["arguments"]) == {"order_id": "7"}
    assert (result["role"], result["tool_call_id"]) == ("tool", call["id"])
    assert result["content"] == "order 7: on its way"
    assert said["content"] == "It is on its way."
    assert first.reward is None
    assert first.metrics.get("independent_reward", 1.0) == 1.0
    assert ("independent_reward" in first.metrics) is (name != "langfuse.json")
    assert first.additional_histories == []


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        *((name, "") for name in ("rows.jsonl", "rows.json", "pretty.json", "rows.csv", "rows.txt", "rows")),
        *(("rows", packed) for packed in (".gz", ".zst", ".bz2", ".xz")),
    ],
)
def test_a_file_is_told_by_what_it_holds(tmp_path: Path, name: str, packed: str) -> None:
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    if name.endswith(".json"):
        text = json.dumps(ROWS, indent=2 if name == "pretty.json" else None)
    if name == "rows.csv":
        cells = [json.dumps(row["messages"]).replace('"', '""') for row in ROWS]
        text = "number,messages\r\n" + "".join(f'{n},"{cell}"\r\n' for n, cell in enumerate(cells))
    data = text.encode("utf-8-sig")
    pack = {".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    data = pack[packed](data) if packed else data
    path = tmp_path / (name + packed)
    path.write_bytes(data)
    reading = read_file(path)
    assert reading.summary == SUMMARY
    assert [[t.messages()[-1]["content"] for t in group] for group in reading.groups] == [["0", "2"], ["1"]]


def test_tables_of_parquet_and_arrow_are_read_alike(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{**row, "n": n, "note": None if n else "x"} for n, row in enumerate(ROWS)]
    rows[0]["messages"] = [SYSTEM, ask(7), {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "rows.parquet")
    for kind, opened in (("file", pyarrow.ipc.new_file), ("stream", pyarrow.ipc.new_stream)):
        with opened(str(tmp_path / kind), table.schema) as writer:
            writer.write_table(table)
    for name in ("rows.parquet", "file", "stream"):
        reading = read_file(tmp_path / name)
        assert reading.summary == SUMMARY
        assert messages_in(reading)[0] == rows[0]["messages"]
        assert reading.groups[0].trajectories[1].metadata == {"n": 2}
    (tmp_path / "torn").write_bytes((tmp_path / "rows.parquet").read_bytes()[:-20])
    with pytest.raises(RowError, match="is a damaged parquet file"):
        read_file(tmp_path / "torn")


@pytest.mark.slow
def test_a_dataset_s_directory_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_list([{"prompt": [SYSTEM, ask(7)], "completion": [ANSWER], "n": n} for n in range(4)])
    found.save_to_disk(str(tmp_path / "one"), num_shards=2)
    datasets.DatasetDict({"train": found}).save_to_disk(str(tmp_path / "splits"))
    (tmp_path / "hub" / "data").mkdir(parents=True)
    found.to_parquet(str(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet"))
    for name in ("one", "splits", "hub"):
        reading = read_file(tmp_path / name)
        assert reading.summary == "reads as: TRL prompt/completion, 4 rows in 1 group by opening messages"
        assert [trajectory.metadata["n"] for trajectory in reading.groups[0]] == [0, 1, 2, 3]


Q, PARIS, LYON = ask(7), {"role": "assistant", "content": "It is Paris."}, {"role": "assistant", "content": "Lyon."}
P, L = PARIS["content"], LYON["content"]
HH = f"\n\nHuman: {Q['content']}\n\nAssistant: "
TURN, GPT = {"from": "human", "value": Q["content"]}, {"from": "gpt", "value": P}
TRL, PAIR, MESSAGES = "TRL prompt/completion", "preference pairs", "OpenAI messages"
SAMPLES = ("completions", "responses", "outputs", "generations", "samples")
ROWS_OF: list[tuple[str, dict[str, Any], list[Any]]] = [
    (TRL, {"prompt": [Q], "completion": [PARIS]}, [None]),
    (TRL, {"prompt": HH, "completion": P}, [None]),
    (TRL, {"messages": [Q], "completion": P, "reward": 1}, [1]),
    (TRL, {"messages": [Q], "output": P}, [None]),
    (TRL, {"question": Q["content"], "responses": [P, L], "reward": [1, 0]}, [1, 0]),
    (TRL, {"prompt": Q["content"], "response": [P, L], "scores": [1, 0]}, [1, 0]),
    (TRL, {"prompt": Q["content"], "response": [{"text": P, "score": 1}, {"text": L, "score": 0}]}, [1, 0]),
    *((TRL, {"prompt": [Q], name: [{"text": P, "n": 1}, {"text": L}]}, [None] * 2) for name in SAMPLES),
    (TRL, {"prompt": [Q], "completions": [[PARIS], [LYON]], "labels": [1, 0]}, [1, 0]),
    (TRL, {"prompt": [Q], "completion": [{"type": "thinking", "thinking": "."}, {"type": "text", "text": P}]}, [None]),
    (PAIR, {"prompt": Q["content"], "chosen": P, "rejected": L}, [1, 0]),
    (PAIR, {"prompt": [Q], "chosen": [Q, PARIS], "rejected": [[LYON], [Q, LYON]]}, [1, 0, 0]),
    (PAIR, {"input": {"messages": [Q]}, "preferred_output": [PARIS], "non_preferred_output": [LYON]}, [1, 0]),
    (PAIR, {"chosen": HH + P, "rejected": HH + L}, [1, 0]),
    (PAIR, {"conversations": [TURN], "chosen": GPT, "rejected": {**GPT, "value": L}}, [1, 0]),
    (PAIR, {"messages": [Q, PARIS], "rejected_message": LYON}, [1, 0]),
    (PAIR, {"messages": [Q, PARIS], "rejected_response": L, "rejected_tokens": 3}, [1, 0]),
    ("inputs and outputs", {"input": Q["content"], "output": [P, L]}, [None, None]),
    ("OpenAI Responses items", {"input": Q["content"], "output": [{"type": "message", **PARIS}]}, [None]),
    ("requests with responses", {"item": {"messages": [Q]}, "sample": {"choices": [{"message": PARIS}]}}, [None]),
    (MESSAGES, {"messages": [Q], "choices": [{"message": PARIS}, {"message": LYON}]}, [None, None]),
    (MESSAGES, {"messages": [Q, PARIS], "output": {"steps": 3}}, [None]),
    (TRL, {"messages": [Q], "output": P, "output_1": "a", "output_2": "b"}, [None]),
    (TRL, {"question": Q["content"], "model_a": "a", "model_b": "b", "completion": P}, [None]),
    ("inputs and outputs", {"instruction": Q["content"], "output": P, "output_1": "a", "output_2": "b"}, [None]),
    ("ShareGPT", {"items": [TURN, GPT]}, [None]),
    ("ShareGPT", {"conversation": [{"human": Q["content"], "assistant": P}]}, [None]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "row", "rewards"), ROWS_OF)
def test_a_row_is_read_as_its_attempts(tmp_path: Path, form: str, row: dict[str, Any], rewards: list[Any]) -> None:
    """The first answer is Paris, the others are Lyon."""
    reading = reading_of(tmp_path, row)
    assert reading.summary.startswith(f"reads as: {form}, 1 row in 1 group by ")
    said = [[(each["role"], each["content"]) for each in one.messages()] for one in reading.groups[0]]
    assert said == [[("user", Q["content"]), ("assistant", P if n == 0 else L)] for n in range(len(rewards))]
    assert [each.metrics.get("independent_reward") for each in reading.groups[0]] == rewards


@pytest.mark.parametrize(
    ("fields", "reward"),
    [
        ({"reward": 0.5}, 0.5),
        ({"label": True}, 1.0),
        ({"reward": None, "score": "0.25"}, 0.25),
        ({"label": 2}, None),
        *(({"reward": text}, number) for text, number in (("90%", 0.9), ("0,9", 0.9), ("12,5", 12.5), ("1", 1.0))),
        *(({"reward": text}, None) for text in ("nan", "good", "1,000")),
    ],
)
def test_a_reward_in_the_file_is_a_metric_and_no_score(tmp_path: Path, fields: dict[str, Any], reward: Any) -> None:
    reading = reading_of(tmp_path, {"messages": CONVERSATION, **fields})
    ((trajectory,),) = reading.groups
    assert trajectory.reward is None
    assert trajectory.metrics.get("independent_reward") == reward
    assert trajectory.metadata == fields
    assert any("no number" in note for note in reading.notes) == (reward is None and "label" not in fields)


def test_an_answer_beside_judged_ones_is_the_reference_and_not_the_end_of_a_conversation(tmp_path: Path) -> None:
    row = {
        "problem": "2+2?",
        "answer": "4",
        "generations": ["It is 4.", "It is 5."],
        "messages": [Q, {**PARIS, "content": "4!"}],
    }
    (group,) = reading_of(tmp_path, row).groups
    assert [member.messages()[-1]["content"] for member in group] == row["generations"]
    assert with_truth_of_rows(group).metadata["truth"] == {"reference": "4"}


def test_a_completion_with_several_choices_is_as_many_attempts_and_metrics_of_a_row_are_metrics(tmp_path: Path) -> None:
    rows = ({"messages": CONVERSATION, "metrics": own} for own in ({"solved": True, "turns": 3}, {"note": "late"}))
    found = [member for group in reading_of(tmp_path, *rows).groups for member in group]
    assert [member.metrics for member in found] == [{"solved": 1.0, "turns": 3.0}, {}]
    assert [member.metadata for member in found] == [{}, {"metrics": {"note": "late"}}]
    choices = [{"index": n, "finish_reason": why, "message": ANSWER} for n, why in enumerate(["stop", "length"])]
    (group,) = reading_of(tmp_path, {"messages": [SYSTEM, ask(7)], "choices": choices}).groups
    assert [each.status for each in group] == ["finished", "truncated"]


def test_own_files_are_read_whatever_they_are_named(tmp_path: Path) -> None:
    groups = [saying("one", "two"), saying("three")]
    store = tmp_path / "store.jsonl.zst"
    TrajectoryStore(store).extend(groups)
    assert read_file(store).groups == groups
    assert read_file(store).summary == "reads as: Gavel groups, 2 rows in 2 groups"
    renamed = store.rename(tmp_path / "store.bin")
    assert read_file(renamed).groups == groups
    mixed = written(tmp_path / "m.jsonl", json.loads(groups[0].to_json()), json.loads(desk().to_json()), CONVERSATION)
    forms = "Gavel groups (1) and Gavel trajectories (1) and OpenAI messages (1)"
    assert forms in read_file(mixed).summary


TRACE = {"id": "t", "timestamp": "2026-11-01T00:00:00Z", "name": "desk", "scores": [{"name": "right", "value": 1}]}
GENERATION = {"id": "o", "traceId": "t", "type": "GENERATION", "startTime": "2026-11-01T00:00:01Z"}
LOGGED = {"input": {"messages": [SYSTEM, ask(7)], "tools": [{"type": "function", "function": {"name": "f"}}]}}
RUN = {"id": "r", "trace_id": "r", "start_time": "2026-11-01", "feedback_stats": {"right": {"n": 1, "avg": 1.0}}}


@pytest.mark.parametrize(
    "row",
    [
        {**TRACE, **LOGGED, "output": ANSWER},
        {**TRACE, "input": json.dumps(LOGGED["input"]), "output": json.dumps(ANSWER)},
        {**TRACE, "observations": [{**GENERATION, **LOGGED, "output": ANSWER}]},
        {"trace": TRACE, "observations": [{**GENERATION, **LOGGED, "output": ANSWER["content"]}]},
        {**RUN, "run_type": "chain", "inputs": LOGGED["input"], "outputs": {"messages": CONVERSATION}},
        {**RUN, "run_type": "llm", "inputs": LOGGED["input"], "outputs": {"choices": [{"message": ANSWER}]}},
        {**RUN, "run_type": "llm", "inputs": json.dumps(LOGGED["input"]), "outputs": json.dumps({"output": ANSWER})},
    ],
)
def test_traces_are_read_in_every_shape_of_their_exports(tmp_path: Path, row: dict[str, Any]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(row, indent=2))
    ((trajectory,),) = read_file(path).groups
    assert trajectory.messages() == CONVERSATION
    assert trajectory.tools == LOGGED["input"]["tools"]
    assert trajectory.metrics == {"right": 1.0, "independent_reward": 1.0}


BATCH = {"choices": [{"index": 0, "finish_reason": "stop", "message": ANSWER}]}


def batch(name: str, body: Any = BATCH, status: int = 200) -> dict[str, Any]:
    response = {"status_code": status, "request_id": "r", "body": body}
    return {"id": f"batch_req_{name}", "custom_id": name, "response": response, "error": None}


def request(number: int, name: str) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "body": {"messages": [SYSTEM, ask(number)]}}


def test_a_batch_s_answers_are_joined_with_its_questions(tmp_path: Path) -> None:
    requests = [request(n, f"{n}-{k}") for n in (7, 8) for k in range(3)]
    asked = written(tmp_path / "input.jsonl", *requests)
    failed = batch("8-2", {"error": {"code": "rate_limit_exceeded", "message": "slow down"}}, 429)
    answers = [batch(each["custom_id"]) for each in requests[::-1] if each["custom_id"] != "8-2"]
    output = written(tmp_path / "output.jsonl", failed, *answers, batch("other"))
    for paths in ([asked, output], [output, asked]):
        reading = read_file(paths)
        assert reading.summary == "reads as: batch output, 13 rows in 2 groups by opening messages"
        assert [len(group) for group in reading.groups] == [2, 3]
        assert reading.groups[1].trajectories[0].messages() == CONVERSATION
        assert reading.notes == [
            f"left out: 1 × request failed (rate_limit_exceeded); first: {output}:1.",
            f"left out: 1 × answer to no request of the input file; first: {output}:7.",
        ]
    (tmp_path / "whole.json").write_text(json.dumps({"requests": requests}, indent=1))
    assert [len(group) for group in read_file([tmp_path / "whole.json", output]).groups] == [2, 3]


def test_a_batch_s_answers_are_refused_without_their_own_questions(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{n}.jsonl", request(n, "a")) for n in (7, 8)]
    output = written(tmp_path / "output.jsonl", batch("a"))
    for given, problem in (
        ([output], "without what was asked"),
        (paths[:1], "is a request of a batch, and no answer is there"),
        ([*paths, output], "two different requests are called a"),
    ):
        with pytest.raises(RowError, match=problem):
            read_file(given)


def zipped(name: str) -> bytes:
    with zipfile.ZipFile(found := io.BytesIO(), "w") as archive:
        archive.writestr(name, "hello")
    return found.getvalue()


def tarred() -> bytes:
    with tarfile.open(fileobj=(found := io.BytesIO()), mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("rows.jsonl"))
    return found.getvalue()


TURNS = {"tasks": [{"id": 1}], "runs": {"all": [{"turns": [{"messages": [ASK, HERE]}]}]}}
OF_A_DESK = {"messages": [{"role": "customer", "content": "Hi"}, {"role": "agent", "content": "Yo"}]}


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("f", b"PK\x03\x04 broken", "(?s)is a damaged zip archive.*Copy it again"),
        ("f", b"\x1f\x8b\x08 broken", "(?s)cannot be unpacked.*write it again"),
        ("f", zstandard.compress(b'{"messages": []}' * 99)[:-9], "(?s)unpacked: it breaks off.*write it again"),
        ("f", b"\x89PNG\r\n\x1a\n", "(?s)is no UTF-8 text.*Save it as UTF-8"),
        ("f", pickle.dumps([1], protocol=5), "(?s)is no UTF-8 text.*Save it as UTF-8"),
        ("f", zipped("xl/workbook.xml"), "(?s)is an Excel workbook.*CSV"),
        ("f", zipped("readme.txt"), "(?s)no Inspect log.*Unpack it"),
        ("f", tarred(), "(?s)is a tar archive.*Unpack it"),
        ("a.json", json.dumps(TURNS).encode(), r"jq -c '\.runs\.all\[\]\.turns\[\]'"),
        ("c.json", b'{"question": "Where?", "answer kind": "text", "n": 1}', r"the paths question, 'answer kind'\. "),
        ("d.csv", "Frage;A;B\nWo ist es?;Hier drin;Da drüben\n".encode(), r"of the paths Frage, A, B\. "),
        ("e.csv", b'a,b\n"{""x"": ""Where?"", ""y"": 1}","[{""z"": ""Here.""}]"\n', r"of the paths a\.x, b\. "),
        ("f.csv", b"Report of May\nprompt,completion\nHi,Hello\nHi,No\n", "delete the lines above its header"),
        ("g.json", json.dumps(OF_A_DESK).encode(), "Rename agent to assistant and customer to user"),
    ],
)
def test_what_is_damaged_something_else_or_to_be_named_is_an_error_with_a_remedy(
    tmp_path: Path, name: str, data: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RowError, match=told) as error:
        read_file(tmp_path / name)
    assert "jq" in told or "jq" not in error.value.remedy
    (tmp_path / "empty").mkdir()
    with pytest.raises(RowError, match="holds no file of attempts"):
        read_file(tmp_path / "empty")


def test_a_run_s_directory_is_read_as_its_training_attempts(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(RowError, match="has no training attempts yet"):
        read_file(tmp_path)
    made = {(split, step): TrajectoryGroup([desk(ending=f"{split} {step}")]) for split, step in PLACES}
    for (split, step), group in made.items():
        TrajectoryStore(tmp_path / "trajectories" / split / f"{step:06d}.jsonl.zst").append(group)
        if split == "held_out":
            with pytest.raises(RowError) as caught:
                read_file(tmp_path)
            assert caught.value.remedy.endswith("trajectories/held_out.")
    reading = read_file(tmp_path)
    assert [group.trajectories[0].messages() for group in reading.groups] == [
        made["train", step].trajectories[0].messages() for step in (1, 2)
    ]
    assert len(read_file(tmp_path / "trajectories" / "held_out").groups) == 1


PLACES = [("held_out", 0), ("train", 2), ("train", 1)]


@pytest.mark.parametrize("named", ["", "trajectories", "trajectories/train"])
def test_a_run_whose_newest_record_a_kill_left_unfinished_is_read_up_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, named: str
) -> None:
    (tmp_path / "model.json").write_text("{}")
    stores = [TrajectoryStore(tmp_path / "trajectories" / "train" / f"{step:06d}.jsonl.zst") for step in (1, 2)]
    for store in stores:
        store.append(TrajectoryGroup([desk(), desk()]))
    newest = stores[1].path
    whole = newest.read_bytes()
    for written in (whole[:2], whole[:60], whole[:-1]):
        caplog.clear()
        newest.write_bytes(written)
        assert len(read_file(tmp_path / named).groups) == 1
        assert str(newest) in caplog.text
    newest.write_bytes(whole + whole[:60])
    assert len(read_file(tmp_path / named).groups) == 2


CHAIN: dict[str, Any] = {"name": "agent", "run_type": "chain", "inputs": {"messages": [ASK]}}
LOOK: dict[str, Any] = {"type": "GENERATION", "startTime": "2025-01-01", "input": [ASK]}


def runs(**last: Any) -> list[dict[str, Any]]:
    found = [CHAIN | {"id": str(n), "trace_id": str(n), "outputs": {"messages": [ASK, HERE]}} for n in range(3)]
    return [*found[:2], found[2] | last]


def observations(**last: Any) -> list[dict[str, Any]]:
    found = [LOOK | {"id": f"o{n}", "traceId": str(n), "output": HERE} for n in range(3)]
    return [*found[:2], found[2] | last]


TRACEBACK = "RateLimitError('slow down')Traceback (most recent call last):\n  File …\nRateLimitError: slow down"


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (runs(outputs=None, error=TRACEBACK), "RateLimitError('slow down')"),
        (runs(outputs=None, error="\n" + TRACEBACK.partition(")")[2]), "RateLimitError: slow down"),
        (runs(outputs=None, status="pending"), "it has no outputs (status pending)"),
        (runs(outputs=None, error="boom", parent_run_id="not in the export", trace_id="t"), "boom"),
        (observations(output=None, level="ERROR", statusMessage="boom"), "boom"),
        (observations(output=None), "it has no output"),
    ],
)
def test_a_run_that_ended_badly_is_a_failed_attempt_with_its_reason(
    tmp_path: Path, rows: list[dict[str, Any]], reason: str
) -> None:
    (path := tmp_path / "runs.json").write_text(json.dumps(rows))
    reading = read_file(path)
    (group,) = reading.groups
    assert [each.status for each in group] == ["finished", "finished", "failed"]
    assert group.trajectories[2].status_reason == reason
    assert f"1 of 3 attempts failed, and gets no score. First: {path}[2] ({reason})." in reading.notes


@pytest.mark.parametrize("place", ["score", "votes"])
def test_a_judge_s_score_that_is_no_number_is_told_with_its_line(tmp_path: Path, place: str) -> None:
    nan = {"score": float("nan"), "model": "m", "order": 0, "position": 0}
    judgements = ({"score": 1.0}, {"votes": [nan]} if place == "votes" else nan)
    groups = [{"trajectories": [{"messages_and_choices": CONVERSATION, "judgement": each}]} for each in judgements]
    with pytest.raises(RowError, match=r"rows\.jsonl:2 .* no number"):
        reading_of(tmp_path, *groups)


LINES = "".join(json.dumps({"messages": [ASK, HERE | {"content": str(n)}]}) + "\n" for n in range(3))


def test_a_hyphen_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(LINES.encode())))
    assert [len(group) for group in read_file(Path("-")).groups] == [3]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(f"{LINES}{{]\n".encode())))
    with pytest.raises(RowError, match=r"^standard input:4 is no JSON value"):
        read_file(Path("-"))


def test_a_pipe_is_read_once_and_whole(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(LINES))
    writer.start()
    reading = read_file(pipe)
    writer.join()
    assert reading.summary == "reads as: OpenAI messages, 3 rows in 1 group by opening messages"


def test_rows_of_several_files_are_grouped_together(tmp_path: Path) -> None:
    lines = LINES.splitlines()
    for number, line in enumerate(lines):
        (tmp_path / f"{number}.jsonl").write_text(line)
    reading = read_file([tmp_path / f"{number}.jsonl" for number in (2, 0)])
    assert [[each.messages()[-1]["content"] for each in group] for group in reading.groups] == [["2", "0"]]
    (tmp_path / "other.jsonl").write_text('{"prompt": "Where?", "completion": "x"}')
    with pytest.raises(RowError, match=r"0\.jsonl:1 is of the format OpenAI messages, and .*other\.jsonl:1 of TRL"):
        read_file([tmp_path / "0.jsonl", tmp_path / "other.jsonl"])


def test_files_of_a_directory_that_hold_no_attempts_are_left_out_and_told(tmp_path: Path) -> None:
    for number, line in enumerate(LINES.splitlines()):
        (tmp_path / f"trial-{number}").mkdir()
        (tmp_path / f"trial-{number}" / "messages.json").write_text(line)
        (tmp_path / f"trial-{number}" / "config.json").write_text('{"model": "m"}')
    reading = read_file(tmp_path)
    assert [len(group) for group in reading.groups] == [3]
    (note,) = reading.notes
    assert "3 files of" in note
    assert "left out, without attempts: trial-0/config.json, trial-1/config.json" in note


def test_a_table_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1....PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(RowError, match="pyarrow") as error:
        read_file(tmp_path / "rows.parquet")
    assert install_line("parquet") in error.value.remedy


HISTORY = [["Where is order 6?", "It is lost."]]
ANSWERS: list[dict[str, Any]] = [
    {"completion": "A."},
    {"responses": ["A.", "B."]},
    {"chosen": "A.", "rejected": ["B.", "C."]},
]
OF_INSTRUCTIONS = [("instruction", answers) for answers in [*ANSWERS, {"output": "A."}]]


@pytest.mark.parametrize(("asked", "answers"), [*product(["prompt", "question"], ANSWERS), *OF_INSTRUCTIONS])
@pytest.mark.parametrize(
    "history", [HISTORY, [{"role": "user", "content": HISTORY[0][0]}, {"role": "assistant", "content": HISTORY[0][1]}]]
)
def test_the_columns_of_a_prompt_are_read_beside_every_kind_of_answer(
    tmp_path: Path, answers: dict[str, Any], asked: str, history: list[Any]
) -> None:
    given = {asked: "Where is", "input": "order 7?"} if asked == "instruction" else {asked: "Where is order 7?"}
    reading = read_file(
        written(tmp_path / "rows.jsonl", {"system": "Be kind.", "history": history, **given, **answers})
    )
    members = [each for group in reading.groups for each in group.trajectories]
    assert len(members) == sum(len(each) if isinstance(each, list) else 1 for each in answers.values())
    for each in members:
        told = [(message["role"], message["content"]) for message in each.messages()[:-1]]
        last = "Where is\n\norder 7?" if asked == "instruction" else "Where is order 7?"
        assert told == [("system", "Be kind."), ("user", HISTORY[0][0]), ("assistant", "It is lost."), ("user", last)]
        assert not each.metadata.keys() & {"system", "history", "question", "instruction", "input", "prompt"}


@pytest.mark.parametrize(
    "row",
    [
        {"conversation_a": [Q, PARIS], "conversation_b": [Q, LYON], "model_a": "m", "model_b": "n", "winner": "a"},
        {"prompt": Q["content"], "response1": "It is Paris.", "response2": "Lyon.", "model1": "m", "model2": "n"}
        | {"preference": [1, 2]},
        {"messages": [Q, PARIS, Q], "answerA": [Q, PARIS], "answerB": [Q, LYON], "modelA": "m", "modelB": "n"},
    ],
)
def test_answers_side_by_side_are_a_group_with_what_is_of_each(tmp_path: Path, row: dict[str, Any]) -> None:
    reading = reading_of(tmp_path, row, row)
    assert reading.summary == "reads as: answers side by side, 2 rows in 2 groups by pair"
    for group in reading.groups:
        assert [each.messages()[-2:] for each in group] == [[Q, PARIS], [Q, LYON]]
        assert [each.metadata["model"] for each in group] == ["m", "n"]


@pytest.mark.parametrize(
    ("row", "asked", "answers", "members"),
    [
        ({"task_id": 1, "traj": [Q, PARIS, Q], "reward": 1.0}, None, ["traj"], [[Q, PARIS, Q]]),
        ({"context": [Q, PARIS, Q], "a": "Lyon.", "b": "Lyon."}, "context", ["a", "b"], [[Q, PARIS, Q, LYON]] * 2),
        ({"problem": Q["content"], "answers": [{"answer": "Lyon.", "rank": 1}]}, "problem", ["answers"], [[Q, LYON]]),
        ({"output": {"time": "1", "history": [Q, LYON]}}, None, ["output.history"], [[Q, LYON]]),
        (
            {"kind": "geo", "question": {"full_text": Q["content"]}, "ours": "It is Paris.", "theirs": "Lyon."},
            "question.full_text",
            ["ours", "theirs"],
            [[Q, PARIS], [Q, LYON]],
        ),
        (
            {"arguments": {"0": {"arg_0": Q["content"]}}, "filtered_resps": ["Paris"], "resps": [["It is Paris."]]},
            "arguments.0.arg_0",
            ["resps.0"],
            [[Q, PARIS]],
        ),
    ],
)
def test_columns_are_listed_and_read_when_they_are_named(
    tmp_path: Path, row: dict[str, Any], asked: str | None, answers: list[str], members: list[Any]
) -> None:
    path = written(tmp_path / "rows.jsonl", row)
    with pytest.raises(RowError) as error:
        read_file(path)
    listed = error.value.remedy.partition("of the paths ")[2]
    assert all(name.removesuffix(".0") in listed for name in [*filter(None, [asked]), *answers])
    reading = read_file(path, columns=Columns(asked, answers))
    assert messages_in(reading) == members


HASHES = {"text": "### Human: Hi### Assistant: Hello"}
STEPWISE = {"prompt": "Why?", "completions": ["A.", "B."], "labels": [True, False]}


Q_A = Columns("q", ("a",))
GERMAN = {"Frage": "Wo ist es?", "Answer A": "a", "Answer B": "b"}


@pytest.mark.parametrize(
    ("row", "columns", "told"),
    [
        ({"prompt": "x"}, None, "nearest to TRL prompt/completion, but lacks completion or response"),
        ({"choices": [{"message": ANSWER}], "object": "chat.completion"}, None, "of a model without what was asked"),
        ({"wheels": 4, "doors": 5}, None, "of no format that is known. Its fields: wheels, doors"),
        (7, None, "is neither an object nor a list"),
        (HASHES, None, "not taken apart"),
        (HASHES, Columns("text", ["text"]), "as prompt and as answer"),
        (HASHES, Columns(None, ["text"]), "no conversation that is taken apart is in text"),
        ({"messages": [Q], "choices": [{"turns": ["A.", "B."]}]}, None, "its choices hold no message"),
        (STEPWISE, None, "steps of one solution"),
        # columns are named as they are to be typed
        (GERMAN, None, "'Answer A', 'Answer B'"),
        ({"data": {"q": "x", "a": "y"}}, Columns("data.q", ("data.b",)), "data.a"),
        ({"q": "Is it?", "a": "It is.", "b": "No it is not.", "winner": "ai"}, None, "q, a, b"),
        ({"prompt": "x", "responses": ["a", {"n": 3}]}, None, "responses.1"),
        ({"prompt": "x", "responses": []}, None, "in it: responses"),
        ({"q": "x", "a": [["y", "z"]]}, Q_A, "--answer-column a.0"),
        ({"q": "x", "a": {"value": "y", "label": 1}}, Q_A, "--answer-column a.value"),
        ({"q": "x", "a": [{"value": "y", "label": 1}]}, Q_A, "--answer-column a.0.value"),
        ({"q": "x", "a": {"text": ["y"], "start": [1]}}, Q_A, "--answer-column a.text.0"),
        ({"q": "x", "a": {"content": "y", "text": "z"}}, Q_A, "--answer-column a.text"),
    ],
)
def test_what_is_not_read_is_refused_with_the_nearest_format_and_what_to_type(
    tmp_path: Path, row: Any, columns: Columns | None, told: str
) -> None:
    second = row | {"winner": "human"} if "winner" in str(row) else row
    with pytest.raises(RowError) as refused:
        reading_of(tmp_path, row, second, columns=columns)
    assert told in str(refused.value)
    assert "rows.jsonl:1" in refused.value.message or "as prompt and as answer" in told


SEEN = {"country": "France", "toxic": False, "id": 7, "thought": "Hm."}
RENDERED = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


ASKS_A = Columns(None, ("a",))
TWO = Columns("asked", ("answer_0", "answer_1"))
ITEMS = Columns("ask", ("said.0.text", "said.1.text"))
THEN = {"prompt": "And then?", "completion": "A."}
STEPS = {"question": Q["content"], "response": P, "tags": ["a", "b"]}
REPEATED = {"chosen": [Q, PARIS], "rejected": [Q, LYON]}


def members(*texts: str, asked: str = "And then?") -> list[list[dict[str, Any]]]:
    return [[{"role": "user", "content": asked}, {"role": "assistant", "content": text}] for text in texts]


@pytest.mark.parametrize(
    ("rows", "columns", "read", "note"),
    [
        # the end of the messages is no part of a prompt, and judged where no other answer stands beside it
        ([{"messages": [Q, PARIS], "generations": [P, "Lyon."], "solution": "It is in France."}], None,
         [[Q, PARIS], [Q, LYON]], "not read: solution, messages.role, "),
        ([{"messages": [Q, PARIS], "output": "Paris"}], None, [[Q, PARIS]], ""),
        ([{"messages": [Q, PARIS, Q], "output": "Lyon."}], None, [[Q, PARIS, Q, LYON]], ""),
        ([{"messages": [Q, PARIS, Q], "output": {"steps": 3}}], None, [[Q, PARIS, Q]], ""),
        ([{"messages": [Q, PARIS], "prediction": "Lyon"}], None, [[Q, PARIS]], "not read: prediction. "),
        ([{"prompt": Q["content"], "a": [PARIS]}], ASKS_A, [[Q, PARIS]], ""),
        ([{"a": [Q, PARIS]}, {"a": None}], ASKS_A, [[Q, PARIS]], "left out: 1 × answer that is null; first: PATH:2."),
        ([{"question": Q["content"], "a": P}, {"a": "y"}], ASKS_A, [[Q, PARIS]], "1 × row with an empty prompt"),
        ([{"system": "Be short.", "prompt": Q["content"], **REPEATED}], None,
         [[{"role": "system", "content": "Be short."}, Q, each] for each in (PARIS, LYON)], ""),
        # a word is the name of what was evaluated, and no system prompt
        ([THEN | {"system": name} for name in ("GPT-4", "BART")], None, members("A.", "A."), "not read: system. "),
        # what nobody reads
        *(([THEN | {"passage": f"It was {n} o'clock."} for n in ns], None, members("A.", "A."), "not read: passage. ")
          for ns in ((1, 2), (1, 1))),
        ([REPEATED | {"topic": "Order of May."}], None, [[Q, PARIS], [Q, LYON]], "not read: topic. "),
        ([THEN | {"history": "Hello"}], None, members("A."), "not read: history. "),
        ([THEN | {"target": "A.", "reference": "B.", "expected": "B.", "target_hash": "ab"}], None, members("A."),
         "not read: target, expected, target_hash. "),
        ([THEN | {"reference_outputs": {"answer": "C"}, "expected": {"value": 4, "is_exact": True}}], None,
         members("A."), "not read: reference_outputs.answer, expected.value, expected.is_exact. "),
        ([{"ask": "And then?", "said": [{"text": t} for t in ts]} for ts in ("AB", "ABC")], ITEMS,
         members(*"ABAB"), "1 × item of said, which --answer-column said may read; first: PATH:2."),
        *(([STEPS | {name: steps}], None, [[Q, PARIS]], f"not read: tags, {name}") for name, steps in (
            ("tool_calls", [{"name": "refund", "arguments": {"order_id": "1001"}}]),
            ("steps", [{"tool": "refund", "input": "1001", "output": "ok"}]),
            ("trajectory", ["refund(1001)"]),
        )),
        # options of one word; what stands beside a named text; exchanges of conversations; a conversation in one text
        ([THEN | {"options": ["Paris", "Lyon"], "b_1": "x", "b_2": "y"}], None, members("A."),
         "not read: options, b_1, b_2. "),
        ([{"prompt": {"system": "Be short.", "user": "And then?"}, "response": "A."}],
         Columns("prompt.user", ("response",)), members("A."), "not read: prompt.system. "),
        ([{"conversation": {"context": "It rains.", "turns": [Q, PARIS]}}], Columns(None, ("conversation.turns",)),
         [[Q, PARIS]], "not read: conversation.context. "),
        ([{"session_id": s, "prompt": asked, "response": "A."} for s in "xy" for asked in (f"And {s}?", "More.")], None,
         None, "4 rows of one session_id ask different things"),
        *(([{"topic": "Geography.", "talk": f"{user}: {Q['content']}\n\n{agent}: It is Paris."}],
           Columns(*named), read, note)
          for user, agent in (("USER", "ASSISTANT"), ("User", "Bot"))
          for named, read, note in (((None, ("talk",)), [[Q, PARIS]], ""),
                                    (("topic", ("talk",)), None, "1 answer with several speakers"))),
        ([{"prompt": "And then?", "key": 7, "response": "A."}], None, members("A."), ""),
        *(([{"messages": [Q, {"role": "assistant", "content": {"answer": "It is Paris.", "label": "good one"}}]}],
           Columns(prompt, ("messages.1.content.answer",)), [[Q, PARIS]], "read: messages.role, messages.content.label")
          for prompt in ("messages.0.content", "messages")),
        ([THEN | {"choices": ["It rains.", "No rain."]}], None, members("A."), "not read: choices. "),
        ([{"prompt": "And then?", "response": {"content": "A.", "sources": ["u"]}}], None, members("A."), ""),
        ([{"asked": [{"role": "HUMAN", "prompt": "And then?"}], "said": "A."}], Columns("asked", ("said",)),
         None, "further fields of messages as if they were said (prompt)"),
        *(([{name: [{a: Q["content"], b: "It is Paris."}]}], Columns(None, (name,)) if name == "turns" else None,
           [[Q, PARIS]], "") for name in ("conversation", "messages", "turns")
          for a, b in (("input", "output"), ("user", "assistant"))),
        # what shows nothing is counted by name
        ([{"messages": CONVERSATION}, {"messages": None}], None, None,
         "left out: 1 × row without messages; first: PATH:2."),
        ([{"chosen": "A.", "rejected": "B."}, {"chosen": "A.", "rejected": None}], None, None,
         "left out: 1 × answer that is null; first: PATH:2."),
        # what may be wrong in a row
        *(([row, row], None, None, note) for row, note in (
            ({"conversation": [Q | SEEN, PARIS | SEEN]}, "as if they were said (country): take out"),
            ({"messages": [Q, {"role": "assistant", "content": {"answer": "P", "label": "right"}}]}, "answers in JSON"),
            ({"input": "Q", "output": {"city": "Bern", "canton": {"name": "Bern"}}}, "answers in JSON"),
            ({"input": RENDERED, "output": "Yo.<|im_end|>"}, "2 prompts rendered by a chat template"),
            ({"prompt": "Hi", "completion": "Hello", "score": float("nan")}, "2 rewards that are no number"),
            ({"instruction": Q["content"], "response": L, "conversations": [TURN, GPT | {"value": L}]},
             "not read: instruction, conversations.from, conversations.value. "),
        )),
        ([json.loads(TrajectoryGroup([desk()]).to_json())], None, None, "--by n is not used: the file holds groups"),
    ],
)  # fmt: skip
def test_what_is_judged_and_what_nobody_reads_is_told(
    tmp_path: Path, rows: list[Any], columns: Columns | None, read: Any, note: str
) -> None:
    path = written(tmp_path / "rows.jsonl", *rows)
    reading = read_file(path, "n" if "--by" in note else None, columns)
    assert read is None or messages_in(reading) == read
    assert any(note.replace("PATH", str(path)) in each for each in [*reading.notes, ""])


@pytest.mark.parametrize("asked", ["messages", "conversations"])
@pytest.mark.parametrize("named", [False, True])
def test_an_answer_beside_a_data_set_s_own_is_judged_with_the_own_as_reference(
    tmp_path: Path, asked: str, named: bool
) -> None:
    path = written(tmp_path / "rows.jsonl", *({asked: [Q, PARIS], "response": text} for text in ("Paris", "Lyon.")))
    columns = Columns(asked if asked != "messages" else None, ("response",)) if named else None
    reading = read_file(path, columns=columns)
    assert messages_in(reading) == [[Q, {**PARIS, "content": "Paris"}], [Q, LYON]]
    assert reading.groups[0].metadata["reference"] == PARIS["content"]
    assert f"--answer-column {asked}" in reading.notes[0]
    assert [each.messages() for each in read_file(path, columns=Columns(None, (asked,))).groups[0]] == [[Q, PARIS]] * 2


PAIRED = {"chosen": PARIS["content"], "rejected": LYON["content"]}
SCORED = {"asked": Q["content"], "answer_0": PARIS["content"], "answer_1": LYON["content"]}


@pytest.mark.parametrize(
    ("rows", "columns", "rewards"),
    [
        ([{"query": Q["content"]} | PAIRED, {"query": None} | PAIRED], Columns("query"), [1, 0]),
        ([{"context": Q["content"]} | PAIRED, {"context": None} | PAIRED], Columns("context"), [1, 0]),
        ([SCORED | {"score_0": 0.5, "score_1": -0.5}], TWO, [0.5, -0.5]),
    ],
)
def test_answers_of_columns_that_are_named_have_their_scores_and_a_pair_beside_a_prompt_s_column_is_a_pair(
    tmp_path: Path, rows: list[Any], columns: Columns, rewards: list[float]
) -> None:
    reading = reading_of(tmp_path, *rows, columns=columns)
    (group,) = reading.groups
    assert messages_in(reading) == [[Q, PARIS], [Q, LYON]]
    assert [each.metrics["independent_reward"] for each in group] == rewards


@pytest.mark.parametrize(
    ("rows", "answers"),
    [
        ([{"completion": "A."}, {"completion": None}], [True, False]),
        ([{"responses": ["A.", None]}], [True, False]),
        ([{"chosen": "A.", "rejected": "B."}, {"chosen": "A.", "rejected": None}], [True, True, True, False]),
        ([{"history": HISTORY, "completion": "A."}, {"history": HISTORY, "completion": None}], [True, False]),
    ],
)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_an_answer_that_is_null_is_a_failed_attempt_and_loses_no_other(
    tmp_path: Path, rows: list[dict[str, Any]], answers: list[bool], form: str
) -> None:
    rows = [{"prompt": "Where?", "tag": None, **row} for row in rows]
    path = written(tmp_path / "rows.jsonl", *rows)
    if form == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "rows.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    reading = read_file(path)
    assert [each.status == "finished" for group in reading.groups for each in group] == answers
    assert any(f"First: {path}:{len(rows)} (no turn of the assistant)." in note for note in reading.notes)


def test_other_histories_make_other_tasks(tmp_path: Path) -> None:
    rows = [{**THEN, "history": [["Hi", answer]]} for answer in ("Hello", "Go away")]
    assert len(reading_of(tmp_path, *rows).groups) == 2
