import json
from multiprocessing import get_context

import pytest

from gavel.judge.audit.golden_set import GoldenGroup, load_golden
from gavel.reports.viewer.annotations import AnnotationError, Annotations, read_scores
from tests.gavel.reports.viewer.stored import group, member

GROUP = group(member("one", 0.9), member("two", 0.2), member("three", 0.5))


def test_scores_come_back_and_a_second_look_replaces_the_first(tmp_path):
    kept = Annotations(tmp_path)
    assert kept.scores("a", 0) is None
    kept.save("a", 0, GROUP, [1.0, None, 0.5], "hm")
    kept.save("a", 1, GROUP, [0.0, 0.1, 0.2], "")
    kept.save("a", 0, GROUP, [0.3, 0.2, None], "")
    assert Annotations(tmp_path).scores("a", 0) == [0.3, 0.2, None]
    assert kept.places() == {("a", 0), ("a", 1)}
    assert "human" not in GROUP.trajectories[0].metrics


@pytest.mark.parametrize("scores", [[None] * 3, [0.5] * 2, [1.5, 0.1, 0.1], [float("nan"), 0.1, 0.1]])
def test_what_is_no_score_is_refused_and_nothing_is_written(tmp_path, scores):
    kept = Annotations(tmp_path)
    with pytest.raises(AnnotationError):
        kept.save("a", 0, GROUP, scores, "")
    assert not kept.path.exists()


def test_a_form_has_numbers_from_0_to_10_and_gaps():
    assert read_scores({"score-0": "7.5", "score-2": " 0 ", "note": "x"}, 3) == [0.75, None, 0.0]
    for text in ("11", "-1", "x", "nan"):
        with pytest.raises(AnnotationError):
            read_scores({"score-0": text}, 1)


def test_scored_groups_become_a_golden_set_with_tiers(tmp_path):
    kept = Annotations(tmp_path)
    kept.save("a", 0, GROUP, [0.2, 0.9, 0.2], "")
    kept.save("a", 1, GROUP, [0.5, 0.5, 0.5], "")
    kept.save("a", 2, GROUP, [0.5, None, None], "")
    file = tmp_path / "golden.json"
    file.write_text(json.dumps([each.model_dump(mode="json") for each in kept.golden()]))
    (found,) = load_golden(file)
    assert isinstance(found, GoldenGroup)
    assert found.order == [["2"], ["1", "3"]]
    assert [said[-1]["content"] for said in found.members.values()] == ["one", "two", "three"]
    assert found.group().trajectories[0].messages()[-1]["content"] == "one"


@pytest.mark.parametrize("content", ["no json\n", '{"format_version": 1, "trajectories": []}\n'])
def test_a_damaged_file_is_told_and_not_overwritten(tmp_path, content):
    kept = Annotations(tmp_path)
    kept.path.write_text(content)
    with pytest.raises(AnnotationError, match="line 1"):
        kept.save("a", 0, GROUP, [0.1, 0.2, 0.3], "")
    assert kept.path.read_text() == content


def _save_many(root, first):
    for number in range(first, first + 10):
        Annotations(root).save("a", number, GROUP, [0.1, 0.2, 0.3], "")


@pytest.mark.slow
def test_two_viewers_of_one_directory_lose_nothing(tmp_path):
    processes = [get_context("spawn").Process(target=_save_many, args=(tmp_path, first)) for first in (0, 100)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(Annotations(tmp_path).places()) == 20
