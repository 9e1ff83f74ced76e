import json

import pytest

from gavel.scenarios.readers.reading import read_groups
from gavel.scenarios.readers.row import RowError


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
