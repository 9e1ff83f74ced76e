import os
from pathlib import Path
from typing import Any

import pytest

from gavel.judge.judge import Judge
from gavel.scenarios.formats.reading import read_file, read_groups
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged_file import (
    JudgedFile,
    JudgedFileError,
    JudgedStream,
    judged_output,
    write_table,
)
from gavel.scenarios.judgement import GroupJudgement
from gavel.scenarios.trajectory import RolloutError
from tests.judge.groups import desk, saying

SETTINGS: dict[str, Any] = {"orders": [2], "rubric": "a"}
NAMES = ["judged.jsonl", "judged.jsonl.zst", "judged.csv", "judged.parquet"]


def inputs(count: int = 4) -> list[TrajectoryGroup]:
    return [saying(f"yes {number}", f"no {number}", metadata={"n": number}) for number in range(count)]


def judge(group: TrajectoryGroup, settings: dict[str, Any] = SETTINGS, **fields: Any) -> TrajectoryGroup:
    whole = GroupJudgement(**{"status": "scored", "calls": 2, "settings": settings, **fields})
    members = [member.model_copy(update={"reward": 0.5}) for member in group]
    return group.model_copy(update={"trajectories": members, "judgement": whole})


def opened(path: Path, groups: list[TrajectoryGroup], **options: Any) -> tuple[JudgedFile, dict[int, TrajectoryGroup]]:
    file = JudgedFile(path, SETTINGS)
    return file, file.begin(groups, **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_goes_on_where_the_first_stopped(tmp_path: Path, name: str):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path, groups = tmp_path / name, inputs()
    first, done = opened(path, groups)
    assert done == {}
    first.append(2, judge(groups[2]))
    first.append(0, judge(groups[0]))
    first.close()  # as a kill does
    second, done = opened(path, groups)
    assert done == {0: judge(groups[0]), 2: judge(groups[2])}
    second.append(3, judge(groups[3]))
    second.append(1, judge(groups[1]))
    second.finish()
    assert read_groups(path) == [judge(group) for group in groups]
    third, done = opened(path, groups)
    assert len(done) == 4
    third.finish()
    assert read_groups(path) == [judge(group) for group in groups]
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_line_that_a_kill_left_unfinished_is_judged_again_at_any_byte(tmp_path: Path):
    path, groups = tmp_path / "judged.jsonl", inputs(2)
    file, _ = opened(path, groups)
    file.append(1, judge(groups[1]))
    ends = [0, path.stat().st_size]
    file.append(0, judge(groups[0]))
    file.close()
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        cut, done = opened(path, groups)
        assert sorted(done) == ([1] if size >= ends[1] else [])
        assert path.read_bytes() == whole[: ends[len(done)]]
        cut.close()


@pytest.mark.parametrize(
    ("groups", "judged", "done"),
    [
        (inputs(), [("unscored", 2, 2), ("partial", 2, 1), ("degenerate", 0, 0), ("scored", 2, 1)], [2]),
        ([*inputs(1), *inputs(1), *inputs(2)], [("scored", 2, 0)] * 2, [0, 1]),
    ],
)
def test_what_the_judge_failed_on_is_judged_again_and_equal_groups_are_told_apart_by_number(
    tmp_path: Path, groups: list[TrajectoryGroup], judged: list[tuple[str, int, int]], done: list[int]
):
    file, _ = opened(tmp_path / "judged.jsonl", groups)
    for index, (status, calls, lost) in enumerate(judged):
        file.append(index, judge(groups[index], status=status, calls=calls, lost_orders=lost))
    file.close()
    assert sorted(opened(tmp_path / "judged.jsonl", groups)[1]) == done


@pytest.mark.parametrize("content", ["hello", "hello\n", '{"messages": []}\n', "\n"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_something_else_is_refused_and_stays(tmp_path: Path, content: str, name: str):
    path, problem = tmp_path / name, "holds no judged group"
    path.write_text(content)
    with pytest.raises(JudgedFileError, match=f"{problem}|not judged" if "messages" in content else problem) as caught:
        opened(path, inputs())
    assert "--fresh" in caught.value.remedy
    assert path.read_text() == content
    file, done = opened(path, inputs(), fresh=True)
    assert done == {}
    file.close()


@pytest.mark.parametrize(
    ("judged", "problem"),
    [
        (judge(inputs()[0], {"orders": [4], "rubric": "a"}), r"orders = \[4\], not \[2\]\."),
        (judge(inputs()[0], {"orders": [4], "rubric": "b"}), r"orders = \[4\], not \[2\] \(and rubric\)"),
        (judge(inputs()[0], {}), "orders = null"),
        (judge(saying("something", "else")), "groups that the input does not have"),
    ],
)
def test_judgements_with_other_settings_or_of_other_groups_are_refused(tmp_path: Path, judged: Any, problem: str):
    file, _ = opened(tmp_path / "judged.jsonl", inputs())
    file.append(0, judged)
    file.close()
    with pytest.raises(JudgedFileError, match=problem):
        opened(tmp_path / "judged.jsonl", inputs())


def test_two_runs_do_not_write_one_file_and_a_link_is_followed_not_replaced(tmp_path: Path):
    target, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(target)
    first, _ = opened(link, inputs(1))
    with pytest.raises(JudgedFileError, match="being written by another"):
        opened(target, inputs(1))
    first.close()
    assert not target.exists()  # nothing was judged
    file, _ = opened(link, inputs(1))
    file.append(0, judge(inputs(1)[0]))
    file.finish()
    assert link.is_symlink()
    assert len(read_groups(target)) == 1


def test_a_device_is_written_and_never_replaced():
    output = judged_output(Path(os.devnull), SETTINGS)
    assert isinstance(output, JudgedStream)
    output.begin(inputs(1), fresh=True)
    output.append(0, judge(inputs(1)[0]))
    output.finish()
    assert Path(os.devnull).is_char_device()


def test_standard_output_gets_the_groups_in_input_order(capfdbinary: pytest.CaptureFixture[bytes]):
    groups = inputs()
    with os.fdopen(os.dup(1), "wb") as stream:
        output = JudgedStream(stream)
        output.append(1, judge(groups[1]))
        assert capfdbinary.readouterr().out == b""
        output.append(0, judge(groups[0]))
        assert len(capfdbinary.readouterr().out.splitlines()) == 2
        output.append(3, judge(groups[3]))
        output.close()
    assert len(capfdbinary.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("name", ["judged.xlsx", "judged.json", "judged.txt", "judged.CSV", "judged.jsonl.gz", "a.tsv"])
def test_a_suffix_of_another_format_is_refused_with_those_that_are_written(tmp_path: Path, name: str):
    with pytest.raises(JudgedFileError, match="are not written as") as error:
        judged_output(tmp_path / name, SETTINGS)
    assert ".jsonl, .jsonl.zst, .parquet or .csv" in error.value.remedy


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
async def test_a_table_gives_back_the_very_groups(tmp_path: Path, suffix: str):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    judge, path = Judge("stand-in", rubric="- calls get_order before refund"), tmp_path / f"judged{suffix}"
    attempts = TrajectoryGroup([desk("refund", reward=0.25), desk("get_order", "refund")], metadata={"task": 'a,\n"b"'})
    odd = saying("\ud800 lone", "=1+1;\x00 two", metadata={"list": [1, None]})
    nobody = TrajectoryGroup(exceptions=[RolloutError(type="E", message="m")])
    groups = [await judge.score(attempts), nobody, await judge.score(odd)]
    write_table(path, groups, suffix)
    assert read_file(path).groups == groups
    assert read_file(path).summary == "reads as: Gavel's judged table, 5 rows in 3 groups"
