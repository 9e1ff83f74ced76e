"""Which groups a list shows and what of them, how files are followed, and the scores that a person gives."""

import json
import os
import sqlite3
from multiprocessing import get_context

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.audit.human_labels import GoldenGroup, load_golden
from gavel.reports.viewer.annotations import AnnotationError, Annotations, read_scores
from gavel.reports.viewer.group_summary import SUMMARY, summarize, words_of
from gavel.reports.viewer.group_view import CASSETTE, cassette_of, group_view
from gavel.reports.viewer.index import FilterError, GroupFilter, Index, NoSuchGroup, search_words
from gavel.scenarios import trajectory_store
from gavel.scenarios.group import to_line
from gavel.scenarios.judged_file import TABLE_SUFFIXES, write_table
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.made import RUN, group, member, run_directory, sampled, store

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
    return [(entry["path"], entry["number"]) for entry in index.groups(GroupFilter(**wanted))[0]]


def test_groups_are_found_by_place_status_and_words_and_come_back_whole(index, root):
    assert index.groups(GroupFilter())[1] == 4
    assert found(index, step="1", sort="oldest") == [(STEP_1, 0), (STEP_1, 1)]
    assert found(index, step="1", show="discordant") == [(STEP_1, 0)]
    assert found(index, step="1", show="unscored") == found(index, step="1", show="flagged") == [(STEP_1, 1)]
    assert found(index, step="1", q="ignore al") == [(STEP_1, 1)]
    assert found(index, q="no such word") == found(index, q="?!") == []
    assert found(index, task="t1", step="1") == [(STEP_1, 0)]
    assert index.counts() == {RUN: 4}
    assert index.choices("step", RUN) == ["1", "2"]
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


def test_a_file_that_was_replaced_or_deleted_is_forgotten_and_one_whose_name_is_no_text_passed_over(index, root):
    name = os.fsencode(root / RUN) + b"/trajectories/train/\xff.jsonl.zst"
    with open(name, "wb") as stream:
        stream.write(store(root, 1).path.read_bytes())
    stored = store(root, 1)
    stored.path.unlink()
    stored.append(group(member("anew", 0.3, task="t9")))
    store(root, 2).path.unlink()
    index.update()
    assert (index.counts(), index.problems()) == ({RUN: 1}, [])
    assert found(index, q="anew") == [(STEP_1, 0)]
    assert found(index, q="ignore") == []


def test_judged_files_are_read_and_other_files_and_records_without_end_are_not(index, root, monkeypatch):
    monkeypatch.setattr(trajectory_store, "MAX_RECORD", 2**26)
    (root / "bomb.jsonl.zst").write_bytes(zstandard.compress(b" " * 2**28))
    groups = [group(member(f"line {n}", 0.5)) for n in range(3)]
    lines = [*map(to_line, groups)]
    for suffix in TABLE_SUFFIXES:
        write_table(root / f"table{suffix}", groups, suffix)
    (root / "dataset.csv").write_text("prompt,completion\nx,y\n")
    (root / "judged.jsonl").write_text("\n".join(lines) + "\n" + lines[0][:50])
    (root / "dataset.jsonl").write_text('{"prompt": "x"}\n')
    (root / ".hidden.jsonl").write_text(lines[0] + "\n")
    (root / "later.jsonl").write_text(json.dumps({"format_version": 999, "trajectories": []}) + "\n")
    index.update()
    judged = ("judged.jsonl", "table.csv", "table.parquet")
    assert index.counts() == {RUN: 4, **dict.fromkeys(judged, 3)}
    assert [index.group(path, 2).trajectories[0].messages()[-1]["content"] for path in judged] == ["line 2"] * 3
    assert dict(index.problems()).keys() == {"bomb.jsonl.zst", "judged.jsonl", "later.jsonl"}
    assert "999" in dict(index.problems())["later.jsonl"]


def test_a_record_that_is_damaged_is_told_once_and_read_again_when_it_is_restored(index, root):

    def flipped(content, at):
        return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]

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


def test_an_index_of_another_format_is_made_anew(root, tmp_path):
    database = tmp_path / "index.sqlite"
    Index(root, database).update()
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version = 999")
    again = Index(root, database)
    assert again.counts() == {}
    again.update()
    assert again.counts() == {RUN: 4}


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


def test_members_stand_side_by_side_round_by_round_the_best_first_and_those_without_a_score_last():
    members = [member("a", 0.2), member("b", None), member("c", 0.9), Trajectory(reward=0.5)]
    assert [view.number for view in group_view(group(*members), "score", []).members] == [2, 3, 0, 1]
    short = Trajectory(messages_and_choices=member("x", 0.1).messages_and_choices[:4])
    found = group_view(group(member("a", 0.2), short, member("b", 0.9)), "", [])
    assert [view.number for view in found.members] == [0, 1, 2]
    assert [turn.role for turn in found.opening] == ["system", "user"]
    assert [[len(turns) for turns in part] for part in found.rounds] == [[2, 2, 2], [1, 0, 1]]
    assert found.members[0].tokens == 4
    assert found.rounds[0][0][0].calls[0].name == "look"
    assert found.rounds[1][0][0].text == "a"


def test_what_there_is_not_is_refused_with_what_there_is():
    for values in ({"show": "no such"}, {"sort": "up"}, {"page": "0"}, {"step": "-1"}, {"q": "x" * 501}):
        with pytest.raises(FilterError) as caught:
            GroupFilter.read(values)
        assert caught.value.remedy


@given(st.text(max_size=40))
def test_no_text_is_an_error_of_the_search(text):
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE VIRTUAL TABLE words USING fts5 (body)")
        query = search_words(text)
        if query:
            database.execute("SELECT rowid FROM words WHERE words MATCH ?", (query,)).fetchall()


def summary(*members, **fields):
    return summarize(json.loads(group(*members, **fields).to_json()))


def test_a_summary_has_what_lists_show():
    cut = member("Mended it.", 0.2, success=True, status="truncated")
    shown = group(member("I am done.", 0.9, success=False), cut, status="partial")
    assert summary(*shown, status="partial") == {
        "task": "t1", "title": "Please mend t1.", "warning": "", "status": "partial", "members": 2, "unscored": 0,
        "failed": 0, "truncated": 1, "mean": 0.55, "spread": 0.7, "success": 0.5, "discordant": 1, "flags": "",
        "edited": 0,
    }  # fmt: skip
    words = words_of(json.loads(shown.to_json()))
    for text in ("You run the desk.", "Mended it.", "a lamp", "look", "because"):
        assert words.count(text) == 1, text


def test_pairs_that_the_judge_ranks_otherwise_and_turns_that_continue_no_sampled_one_are_counted():
    pairs = [(0.9, True), (0.9, False), (0.2, True), (None, True)]
    assert summary(*[member("x", score, success=success) for score, success in pairs])["discordant"] == 1
    assert summary(member("x", 0.9), member("y", 0.1))["discordant"] == 0
    turns = [sampled("one"), {"role": "user", "content": "?"}, sampled("two", continues_sampled=False)]
    assert summary(Trajectory(messages_and_choices=turns), member("x", 0.1))["edited"] == 1


names = st.sampled_from(
    ["trajectories", "judgement", "metadata", "exceptions", "metrics", "messages_and_choices", "role", "score"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(names, json_values, max_size=4))
def test_a_row_may_hold_anything(anything):
    assert summarize(anything).keys() == set(SUMMARY)
    words_of(anything)


GROUP = group(member("one", 0.9), member("two", 0.2), member("three", 0.5))


def test_scores_come_back_and_a_second_look_replaces_the_first(tmp_path):
    kept = Annotations(tmp_path)
    assert kept.scores("a", 0) is None
    kept.save("a", 0, GROUP, [1.0, None, 0.5])
    kept.save("a", 1, GROUP, [0.0, 0.1, 0.2])
    kept.save("a", 0, GROUP, [0.3, 0.2, None])
    assert Annotations(tmp_path).scores("a", 0) == [0.3, 0.2, None]
    assert kept.places() == {("a", 0), ("a", 1)}
    assert "human" not in GROUP.trajectories[0].metrics


def test_what_is_no_score_is_refused_and_nothing_is_written(tmp_path):
    kept = Annotations(tmp_path)
    for scores in ([None] * 3, [0.5] * 2, [1.5, 0.1, 0.1], [float("nan"), 0.1, 0.1]):
        with pytest.raises(AnnotationError):
            kept.save("a", 0, GROUP, scores)
    assert not kept.path.exists()
    assert read_scores({"score-0": "7.5", "score-2": " 0 "}, 3) == [0.75, None, 0.0]
    for text in ("11", "-1", "x", "nan"):
        with pytest.raises(AnnotationError):
            read_scores({"score-0": text}, 1)


def test_scored_groups_become_a_golden_set_with_tiers(tmp_path):
    kept = Annotations(tmp_path)
    kept.save("a", 0, GROUP, [0.2, 0.9, 0.2])
    kept.save("a", 1, GROUP, [0.5, 0.5, 0.5])
    kept.save("a", 2, GROUP, [0.5, None, None])
    file = tmp_path / "golden.json"
    file.write_text(json.dumps([each.model_dump(mode="json") for each in kept.golden()]))
    (found,) = load_golden(file)
    assert isinstance(found, GoldenGroup)
    assert found.order == [["2"], ["1", "3"]]
    assert [said[-1]["content"] for said in found.members.values()] == ["one", "two", "three"]
    assert found.group().trajectories[0].messages()[-1]["content"] == "one"


@pytest.mark.parametrize("content", ["no json\n", '{"format_version": 1, "trajectories": []}\n'])
def test_a_damaged_file_of_scores_is_told_and_not_overwritten(tmp_path, content):
    kept = Annotations(tmp_path)
    kept.path.write_text(content)
    with pytest.raises(AnnotationError, match="line 1"):
        kept.save("a", 0, GROUP, [0.1, 0.2, 0.3])
    assert kept.path.read_text() == content


def _save_many(root, first):
    for number in range(first, first + 10):
        Annotations(root).save("a", number, GROUP, [0.1, 0.2, 0.3])


@pytest.mark.slow
def test_two_viewers_of_one_directory_lose_nothing(tmp_path):
    processes = [get_context("spawn").Process(target=_save_many, args=(tmp_path, first)) for first in (0, 100)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(Annotations(tmp_path).places()) == 20
