"""Held-out attempts of compared runs, ranked by a judge that does not know whose they are."""

import json
from pathlib import Path

import pytest

from gavel.base.errors import GavelError
from gavel.cli.compare_session import BEFORE, attempts_by_seed, judge_that_ranks, with_ranking
from gavel.cli.terminal import Silent
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.llm.types import Message
from gavel.reports.comparison import Comparison, compare_cells, read_cell
from tests.gavel.reports.made_runs import made_run


class Better:
    """Scores replies that are `a better reply`; remembers what it was shown."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def __call__(self, messages: list[Message], schema: dict[str, object]) -> str:
        self.prompts.append("\n".join(message["content"] for message in messages))
        scores: list[dict[str, object]] = []
        for label, attempt in read_transcripts(messages[-1]["content"]).items():
            better = "a better reply" in str(attempt)
            scores.append({"trajectory_id": label, "explanation": f"better: {better}", "score": float(better)})
        return json.dumps({"scores": scores})


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    cells = [
        read_cell(arm, seed, made_run(tmp_path / f"{arm}-{seed}", says=f"{says} {seed}"), None)
        for arm, says in {"hand": "no", "judge": "a better reply"}.items()
        for seed in (0, 1)
    ]
    return compare_cells(cells, "desk", tmp_path / "report", margin=0.03, threshold=0.8)


def test_attempts_of_a_seed_are_those_of_its_runs_and_of_the_common_start(comparison: Comparison) -> None:
    cells = [cell for arm in comparison.arms for cell in arm.cells]
    found = attempts_by_seed(cells, same_start=True)
    assert [(seed, *attempts) for seed, attempts in found.items()] == [
        (0, BEFORE, "hand", "judge"),
        (1, BEFORE, "hand", "judge"),
    ]
    assert sorted(found[1]["judge"]) == [("task-0", 1), ("task-1", 1), ("task-2", 1)]
    assert list(attempts_by_seed(cells, same_start=False)[0]) == ["hand", "judge"]
    assert attempts_by_seed(cells[:1], same_start=False) == {}


async def test_the_judge_is_not_told_whose_attempts_they_are_and_is_not_asked_twice(comparison: Comparison) -> None:
    asked = Better()
    ranked = await with_ranking(comparison, Judge(asked, rubric="The better.", mode="pairwise"), Silent())
    assert ranked.blind is not None
    assert ranked.blind.contenders == [BEFORE, "hand", "judge"]
    assert ranked.blind.overall["judge"].over_seeds.value == 1.0
    assert ranked.blind.pairs[BEFORE, "hand"].over_seeds.value == 0.5
    assert ranked.blind.tasks == 6
    assert asked.prompts
    assert not any(BEFORE in prompt or "hand" in prompt for prompt in asked.prompts)
    calls = len(asked.prompts)
    again = await with_ranking(comparison, Judge(asked, rubric="The better.", mode="pairwise"), Silent())
    assert len(asked.prompts) == calls
    assert again.blind is not None
    assert again.blind.as_json()["pairs"] == ranked.blind.as_json()["pairs"]


async def test_runs_without_common_tasks_are_refused(comparison: Comparison) -> None:
    for file in comparison.directory.parent.glob("*/trajectories/held_out/*"):
        file.unlink()
    with pytest.raises(GavelError, match="nothing to rank"):
        await with_ranking(comparison, Judge("constant"), Silent())


def test_it_ranks_pairs_whatever_the_mode_and_rubric_of_the_judge_that_trains(tmp_path: Path) -> None:
    trains = JudgeConfig(models="constant", rubric="Please me.", mode="groupwise", orders=3)
    judge = judge_that_ranks(trains, "stand-in", "- ends with a message to the customer", tmp_path)
    assert (judge.mode, judge.orders, judge.rubric.words) == ("pairwise", 3, "- ends with a message to the customer")
    assert judge_that_ranks(trains, "stand-in", None, tmp_path, "groupwise").mode == "groupwise"


async def test_attempts_that_are_all_the_same_are_tied_without_a_question(tmp_path: Path) -> None:
    cells = [read_cell(arm, 0, made_run(tmp_path / arm, says="?"), None) for arm in ("hand", "judge")]
    same = compare_cells(cells, "desk", tmp_path / "report", margin=0.03, threshold=0.8)
    asked = Better()
    for _ in range(2):
        ranked = await with_ranking(same, Judge(asked, rubric="The better.", mode="pairwise"), Silent())
        assert ranked.blind is not None
        assert [ranked.blind.overall[name].over_seeds.value for name in ranked.blind.contenders] == [0.5, 0.5, 0.5]
        assert ranked.blind.unscored == 0
    assert asked.prompts == []
