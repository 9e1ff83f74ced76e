import json

import pytest

from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.formats.row import RowError


@pytest.mark.parametrize(
    "row",
    [
        {"system": "Answer in French.", "prompt": "P", "response": "Oui"},
        {"system_prompt": "Answer in French.", "prompt": [{"role": "user", "content": "P"}], "completion": "Oui"},
        {"system": [{"type": "text", "text": "Answer in French."}], "prompt": "P", "completion": "Oui"},
    ],
)
def test_a_system_message_in_a_field_of_its_own_is_read(tmp_path, row):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "system": "In German."}) + "\n")
    first, second = read_groups(tmp_path / "rows.jsonl")
    assert [message["role"] for message in first.trajectories[0].messages()] == ["system", "user", "assistant"]
    assert "German" in str(second.trajectories[0].messages()[0])


@pytest.mark.parametrize("name", ["completion", "response", "output"])
def test_an_answer_beside_messages_without_one_is_read(tmp_path, name):
    rows = [{"messages": [{"role": "user", "content": "Q"}], name: said} for said in ("good", "bad")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (group,) = read_groups(tmp_path / "rows.jsonl")
    assert [member.messages()[-1]["content"] for member in group] == ["good", "bad"]


def test_an_answer_of_a_table_that_looks_like_json_is_text(tmp_path):
    (tmp_path / "rows.csv").write_text('prompt,response\nQ,"[1, 2]"\nQ,"{""a"": 1}"\n')
    (group,) = read_groups(tmp_path / "rows.csv")
    assert [member.messages()[-1]["content"] for member in group] == ["[1, 2]", '{"a": 1}']


@pytest.mark.parametrize("rows", ['Q,"a" b\nQ,c\n', 'Q,"he said\nQ,third\n', 'Q,whole\nQ,"half of a ce'])
def test_a_table_with_a_broken_quote_is_refused(tmp_path, rows):
    (tmp_path / "rows.csv").write_text("prompt,response\n" + rows)
    with pytest.raises(RowError, match="no row of a table"):
        read_groups(tmp_path / "rows.csv")


@pytest.mark.parametrize("column", ["messages", "prompt", "completion"])
def test_messages_that_a_table_keeps_as_printed_arrays_are_refused_with_the_remedy(tmp_path, column):
    printed = "[{'content': 'Where?', 'role': 'user'}\n {'content': 'm', 'role': 'assistant'}]"
    row = {"prompt": "Q", "completion": "A"} if column != "messages" else {}
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, column: printed}))
    with pytest.raises(RowError, match=f"{column}: it is text, and no JSON list") as error:
        read_groups(tmp_path / "rows.jsonl")
    assert "df.to_json" in error.value.remedy


@pytest.mark.parametrize("name", ["completions", "responses", "outputs", "generations", "samples"])
@pytest.mark.parametrize(
    "form", [str, lambda text: {"text": text, "n": 1}, lambda text: [{"role": "assistant", "content": text}]]
)
def test_several_answers_in_a_row_are_as_many_attempts(tmp_path, name, form):
    rows = [{"prompt": f"Q{n}", name: [form(f"{n}{m}") for m in range(3)], "rewards": [1, 0.5, 0]} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    groups = read_groups(tmp_path / "rows.jsonl")
    assert [[member.messages()[-1]["content"] for member in group] for group in groups] == [
        ["00", "01", "02"],
        ["10", "11", "12"],
    ]
    assert [member.metrics["independent_reward"] for member in groups[0]] == [1, 0.5, 0]


def test_an_answer_without_text_among_several_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "Q", "outputs": ["a", {"tokens": [1]}]}))
    with pytest.raises(RowError, match=r"rows\.jsonl:1 cannot be judged: outputs\.1: it holds no text"):
        read_groups(tmp_path / "rows.jsonl")
