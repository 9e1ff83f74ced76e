"""Groups that Atropos' environments write."""

import json
import math
from pathlib import Path

import pytest

from gavel.scenarios.formats.export import export_file, stored_groups
from gavel.scenarios.formats.reading import read_file, read_groups
from gavel.scenarios.formats.row import RowError

GROUP = {
    "tokens": [[7, 8, 20, 9, 21], [7, 8, 22]],
    "masks": [[-100, -100, 20, -100, 21], [-100, -100, 22]],
    "scores": [1.0, 0.5],
    "inference_logprobs": [[1.0, 1.0, -0.5, 1.0, -0.25], [1.0, 1.0, -2.0]],
    "messages": [
        [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": "first"},
            {"role": "user", "content": "On."},
            {"role": "assistant", "content": "second"},
        ],
        [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "other"}],
    ],
    "advantages": [],
    "group_overrides": {},
}


def written(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "groups.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_a_row_is_a_group_with_scores_and_tokens(tmp_path: Path):
    reading = read_file(written(tmp_path, GROUP, GROUP | {"env_id": 3}))
    assert reading.summary.startswith("reads as: Atropos groups, 2 rows in 2 groups")
    first, second = reading.groups
    assert [trajectory.reward for trajectory in first] == [1.0, 0.5]
    assert [choice.model_extra["token_ids"] for choice in first.trajectories[0].choices()] == [[20], [21]]
    assert [message["content"] for message in first.trajectories[0].messages()] == ["Go.", "first", "On.", "second"]
    assert second.metadata["env_id"] == 3


def test_masks_of_ones_and_zeros_are_refused(tmp_path: Path):
    row = GROUP | {"masks": [[0, 0, 1, 0, 1], [0, 0, 1]], "inference_logprobs": None}
    with pytest.raises(RowError, match=r"masks\[0\]\[0\] is 0") as caught:
        read_file(written(tmp_path, row))
    assert caught.value.remedy


def test_what_is_read_is_written_as_it_was(tmp_path: Path):
    out = tmp_path / "out.jsonl"
    told = export_file(stored_groups(read_groups(written(tmp_path, GROUP))), "atropos", out)
    assert told.summary.startswith("wrote 2 attempts of 1 group as Atropos groups")
    (line,) = out.read_text().splitlines()
    kept = ("tokens", "masks", "scores", "inference_logprobs", "messages")
    assert {name: json.loads(line)[name] for name in kept} == {name: GROUP[name] for name in kept}


def test_only_what_is_written_is_counted(tmp_path: Path):
    groups = [group for _ in range(2) for group in read_groups(written(tmp_path, GROUP))]
    groups[0].trajectories[1].reward = math.nan
    told = export_file(stored_groups(groups), "atropos", tmp_path / "out.jsonl")
    assert told.summary.startswith("wrote 3 attempts of 2 groups")
    assert told.notes == ["left out or changed: 1 × attempt left out: it has no score"]


def test_a_member_whose_text_is_one_message_is_read_without_tokens_and_told(tmp_path: Path):
    whole = [[{"role": "user", "content": "<|user|>Go.<|assistant|>first"}], GROUP["messages"][1]]
    reading = read_file(written(tmp_path, GROUP | {"messages": whole}))
    assert any("read as text, without tokens" in note for note in reading.notes)
    assert reading.groups[0].trajectories[0].messages() == [
        {"role": "assistant", "content": "<|user|>Go.<|assistant|>first"}
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"messages": None}, "no messages"), ({"scores": [1.0]}, "scores has 1 members"), ({"masks": "x"}, "masks")],
)
def test_a_row_that_cannot_be_read_is_told_with_its_place(tmp_path: Path, changes: dict, told: str):
    with pytest.raises(RowError) as raised:
        read_groups(written(tmp_path, GROUP, GROUP | changes))
    assert told in str(raised.value)
    assert "2" in str(raised.value)
