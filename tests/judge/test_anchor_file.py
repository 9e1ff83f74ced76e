"""Anchors from attempts that a person scored."""

from pathlib import Path

import pytest

from gavel.judge.anchor_file import read_anchors
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.judge.groups import desk


def scored(file: Path, *groups: dict[str, float | None]) -> Path:
    for group in groups:
        members = [
            desk(ending=text, metrics={"turns": 1} | ({} if score is None else {"human": score}))
            for text, score in group.items()
        ]
        TrajectoryStore(file).append(TrajectoryGroup(members))
    return file


def endings(file: Path, most: int) -> list[tuple[str | None, float]]:
    return [(anchor.trajectory.messages()[-1].get("content"), anchor.score) for anchor in read_anchors(file, most=most)]


def test_anchors_are_spread_over_the_scores_from_the_best_to_the_worst(tmp_path: Path) -> None:
    file = scored(tmp_path / "a.jsonl.zst", {"bad": 0.1, "skipped": None, "fair": 0.5}, {"good": 0.9, "poor": 0.2})
    assert endings(file, 2) == [("good", 0.9), ("bad", 0.1)]
    assert endings(file, 3) == [("good", 0.9), ("poor", 0.2), ("bad", 0.1)]
    assert endings(file, 6) == [("good", 0.9), ("fair", 0.5), ("poor", 0.2), ("bad", 0.1)]


async def test_a_judge_takes_them_and_says_so(tmp_path: Path) -> None:
    file = scored(tmp_path / "a.jsonl.zst", {"bad": 0.1, "good": 0.9})
    judge = Judge("constant", anchors=read_anchors(file))
    judged = await judge.score(TrajectoryGroup([desk(ending="one"), desk(ending="two")]))
    assert judge.mode == "anchored"
    assert judged.judgement is not None
    assert len(judged.judgement.settings["anchors"]) == 2  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([{"one": None, "two": None}], "no attempt for human"),
        ([{"one": 0.5, "two": 0.5}], "attempts of one score only for human"),
        ([{"one": 0.5, "two": 7.0}], "from 0 to 1, not 7"),
        ([{"same": 0.5}, {"same": 0.9}], "look the same to a judge"),
    ],
)
def test_what_is_no_set_of_anchors_is_refused(tmp_path: Path, groups: list[dict[str, float | None]], said: str) -> None:
    file = scored(tmp_path / "a.jsonl.zst", *groups)
    with pytest.raises(JudgeError, match=said):
        read_anchors(file)
    with pytest.raises(JudgeError, match="no number of anchors"):
        read_anchors(file, most=1)
