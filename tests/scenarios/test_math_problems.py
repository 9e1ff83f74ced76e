import json
from pathlib import Path

import pytest

from gavel.base.errors import GavelError
from gavel.scenarios.library.word_math import PLAYERS, draw_task
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import ScenarioError, find_scenario
from gavel.scenarios.scripted_agent import played_by

ROWS = [{"question": f"What is {n} plus {n}?", "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n:,}"} for n in
        range(490, 530)]  # fmt: skip


def jsonl(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_of_problems_is_a_scenario_with_a_fifth_held_out(tmp_path: Path):
    file = jsonl(tmp_path / "school.jsonl", [*ROWS, ROWS[0]])
    scenario = find_scenario(f"word_math:{file}")
    assert scenario.name == "word_math-school"
    train, held_out = scenario.tasks("train"), scenario.tasks("held_out")
    assert (len(train), len(held_out)) == (32, 8)
    assert not {task.user for task in train} & {task.user for task in held_out}
    by_text = {task.user: task for task in [*train, *held_out]}
    assert by_text["What is 500 plus 500?"].data["answer"] == "1000"
    assert by_text["What is 500 plus 500?"].reference == ROWS[10]["answer"]


def test_a_directory_of_parquet_files_has_its_own_splits(tmp_path: Path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS[:30]), tmp_path / "train-00000-of-00001.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS[29:]), tmp_path / "test-00000-of-00001.parquet")
    scenario = find_scenario(f"word_math:{tmp_path}")
    assert len(scenario.tasks("train")) == 30
    assert len(scenario.tasks("held_out")) == 10  # one of them is trained on


async def test_problems_of_a_file_are_played_as_the_generated_ones_are(tmp_path: Path):
    generated = [draw_task(number) for number in range(20)]
    rows = [{"question": task.user, "answer": f"{task.reference}\n#### {task.data['answer']}"} for task in generated]
    scenario = find_scenario(f"word_math:{jsonl(tmp_path / 'p.jsonl', list(rows))}")
    assert scenario.success is not None
    for task in scenario.tasks("held_out"):
        for player, expected in (("expert", True), ("fool", False)):
            episode = await rollout(played_by(PLAYERS[player], task), scenario, task)
            assert scenario.success(episode) is expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"question": "How many?"}\n', "has no question and answer"),
        ('{"question": "How many?", "answer": "many"}\n', "does not end with '#### ' and a number"),
        ('{"question": "", "answer": "#### 1"}\n', "does not end with"),
        ("[]\n", "holds no problems|no question"),
        ("", ""),
        ("{broken\n", ""),
    ],
)
def test_what_is_no_problem_is_told_with_its_place(tmp_path: Path, content: str, said: str):
    file = tmp_path / "problems.jsonl"
    file.write_text(content)
    with pytest.raises(GavelError, match=said):
        find_scenario(f"word_math:{file}")


def test_a_missing_file_and_a_directory_without_splits_are_told(tmp_path: Path):
    with pytest.raises(ScenarioError, match="there is no file"):
        find_scenario(f"word_math:{tmp_path / 'none.jsonl'}")
    jsonl(tmp_path / "all.jsonl", list(ROWS))
    with pytest.raises(ScenarioError, match=r"begin with train and test; found: all\.jsonl"):
        find_scenario(f"word_math:{tmp_path}")
