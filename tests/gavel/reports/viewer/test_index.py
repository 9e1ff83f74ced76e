import json
import os

import pytest
import zstandard

from gavel.reports.viewer.group_view import CASSETTE, cassette_of
from gavel.reports.viewer.index import GroupFilter, Index, NoSuchGroup
from gavel.scenarios import trajectory_store
from gavel.scenarios.group import to_line
from tests.gavel.reports.viewer.stored import RUN, group, member, run_directory, store

STEP_1 = f"{RUN}/trajectories/train/000001.jsonl.zst"


@pytest.fixture
def root(tmp_path):
    run_directory(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def index(root, tmp_path):
    made = Index(root, tmp_path / "cache" / "index.sqlite")
    made.update()
    return made


def found(index, **wanted):
    return [(entry.path, entry.number) for entry in index.groups(GroupFilter(**wanted))[0]]


def test_groups_are_found_by_place_status_and_words(index):
    assert index.groups(GroupFilter())[1] == 4
    assert found(index, step="1", sort="oldest") == [(STEP_1, 0), (STEP_1, 1)]
    assert found(index, step="1", show="discordant") == [(STEP_1, 0)]
    assert found(index, step="1", show="unscored") == found(index, step="1", show="flagged") == [(STEP_1, 1)]
    assert found(index, step="1", q="ignore al") == [(STEP_1, 1)]
    assert found(index, q="no such word") == found(index, q="?!") == []
    assert found(index, task="t1", step="1") == [(STEP_1, 0)]
    assert index.counts() == {RUN: 4}
    assert index.choices("step", RUN) == ["1", "2"]


def test_a_group_comes_back_whole(index, root):
    for number, stored in enumerate(store(root, 1)):
        assert index.group(STEP_1, number).model_dump() == stored.model_dump()
    for path, number in [(STEP_1, 2), ("other", 0), ("../secret", 0)]:
        with pytest.raises(NoSuchGroup):
            index.group(path, number)
        with pytest.raises(NoSuchGroup):
            index.entry(path, number)


def test_what_is_appended_is_read_once_and_an_unfinished_end_is_left_for_later(index, root, caplog):
    stored = store(root, 1)
    whole = stored.path.read_bytes()
    stored.append(group(member("a third", 0.3, task="t3")))
    appended = stored.path.read_bytes()
    stored.path.write_bytes(appended[:-7])
    for _ in range(3):
        index.update()
    assert index.counts() == {RUN: 4}
    assert sum("unfinished" in record.getMessage() for record in caplog.records) == 1
    with stored.path.open("r+b") as stream:
        stream.write(appended)
    index.update()
    index.update()
    assert found(index, q="third") == [(STEP_1, 2)]
    assert index.group(STEP_1, 2).trajectories[0].reward == 0.3
    assert appended.startswith(whole)
    assert index.counts() == {RUN: 5}


def test_a_file_that_was_replaced_or_deleted_is_forgotten(index, root):
    stored = store(root, 1)
    stored.path.unlink()
    stored.append(group(member("anew", 0.3, task="t9")))
    store(root, 2).path.unlink()
    index.update()
    assert index.counts() == {RUN: 1}
    assert found(index, q="anew") == [(STEP_1, 0)]
    assert found(index, q="ignore") == []


def test_a_judged_file_of_json_lines_is_read_and_other_files_are_not(index, root):
    lines = [to_line(group(member(f"line {n}", 0.5))) for n in range(3)]
    (root / "judged.jsonl").write_text("\n".join(lines) + "\n" + lines[0][:50])
    (root / "dataset.jsonl").write_text('{"prompt": "x"}\n')
    (root / ".hidden.jsonl").write_text(lines[0] + "\n")
    (root / "later.jsonl").write_text(json.dumps({"format_version": 999, "trajectories": []}) + "\n")
    index.update()
    assert index.counts() == {RUN: 4, "judged.jsonl": 3}
    assert index.group("judged.jsonl", 2).trajectories[0].messages()[-1]["content"] == "line 2"
    assert "999" in dict(index.problems())["later.jsonl"]


def test_a_record_that_is_damaged_is_told_once_and_read_again_when_it_is_restored(index, root):
    file = store(root, 3).path
    store(root, 3).extend(group(member(f"number {n}", 0.5, task=f"x{n}")) for n in range(3))
    whole = file.read_bytes()
    first, second, _ = (row.end for row in store(root, 3).rows_from(0))
    file.write_bytes(flipped(whole, (first + second) // 2))
    for _ in range(3):
        index.update()
    assert index.counts() == {RUN: 5}
    ((path, problem),) = index.problems()
    assert path.endswith("000003.jsonl.zst")
    assert f"damaged at byte {first}" in problem
    file.write_bytes(flipped(whole, (second + len(whole)) // 2))  # the last one could be an unfinished one
    index.update()
    assert len(index.problems()) == 1
    file.write_bytes(whole)
    os.utime(file, ns=(0, 0))  # whatever the clock's steps
    index.update()
    assert index.problems() == []
    assert index.counts() == {RUN: 7}


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def test_an_index_of_another_format_is_made_anew(root, tmp_path):
    database = tmp_path / "index.sqlite"
    Index(root, database).update()
    import sqlite3

    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version = 999")
    again = Index(root, database)
    assert again.counts() == {}
    again.update()
    assert again.counts() == {RUN: 4}


def test_a_file_whose_name_is_no_text_is_passed_over(index, root):
    name = os.fsencode(root / RUN) + b"/trajectories/train/\xff.jsonl.zst"
    with open(name, "wb") as stream:
        stream.write(store(root, 1).path.read_bytes())
    index.update()
    assert (index.counts(), index.problems()) == ({RUN: 4}, [])


def test_links_out_of_the_directory_are_not_followed(index, root, tmp_path):
    elsewhere = tmp_path / "elsewhere.jsonl"
    elsewhere.write_text(to_line(group(member("secret", 0.5))) + "\n")
    (root / "link.jsonl").symlink_to(elsewhere)
    (root / "linked").symlink_to(tmp_path / "runs" / RUN)
    (root / "circle.jsonl.zst").symlink_to(root / "circle.jsonl.zst")
    (root / "inner.jsonl").symlink_to(root / "judged.jsonl")
    (root / "judged.jsonl").write_text(to_line(group(member("x", 0.5))) + "\n")
    index.update()
    assert index.counts() == {RUN: 4, "judged.jsonl": 1, "inner.jsonl": 1}
    assert [path for path, _ in index.problems()] == ["circle.jsonl.zst", "link.jsonl"]
    (root / "judged.jsonl").unlink()
    (root / "judged.jsonl").symlink_to(elsewhere)  # after it was read
    with pytest.raises(NoSuchGroup):
        index.group("judged.jsonl", 0)
    cassette = tmp_path / CASSETTE
    cassette.write_bytes(b"")
    assert cassette_of(root, STEP_1) is None
    (root / CASSETTE).symlink_to(cassette)
    assert cassette_of(root, STEP_1) is None


def test_a_record_that_expands_without_end_is_a_problem(index, root, monkeypatch):
    monkeypatch.setattr(trajectory_store, "MAX_RECORD", 2**26)
    bomb = zstandard.ZstdCompressor().compress(b" " * 2**28)
    assert len(bomb) < 2**15
    (root / "bomb.jsonl.zst").write_bytes(bomb)
    index.update()
    assert index.counts() == {RUN: 4}
    assert [path for path, _ in index.problems()] == ["bomb.jsonl.zst"]
