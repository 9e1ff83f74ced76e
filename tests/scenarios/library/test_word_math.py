"""Word problems; what counts as one short sentence about a topic; the orders of the writing desk."""

import json
from pathlib import Path

import pytest

from gavel.base.errors import GavelError
from gavel.scenarios.library import one_sentence, writing
from gavel.scenarios.library.word_math import TEMPLATES, answer_in, calculate, draw_task
from gavel.scenarios.scenario import ScenarioError, find_scenario
from gavel.scenarios.trajectory import Trajectory

VALUES = {
    "(3 + 4) * 2,500 / 7": "2500", "0.1 + 0.2": "0.3", "2 ^ 10": "1024", "7 // 2 + 7 % 2": "4", "-3 − -5": "2",
    "$1,000 × 2 ÷ 3": "666.6666667", "1/3": "0.3333333333",
}  # fmt: skip
NO_ARITHMETIC = (
    "__import__('os').system('true')", "().__class__", "[1 for _ in (1,)]", "'a' * 9", "True + 1", "9 ** 9 ** 9",
    "2 ** 0.5", "1 << 2", "1e400 * 1e400", "", "1\n2", "\x00", "(" * 150, "1" * 201,
)  # fmt: skip


@pytest.mark.parametrize(("expression", "value"), VALUES.items())
def test_arithmetic_is_exact(expression: str, value: str):
    assert calculate(expression) == value


@pytest.mark.parametrize("expression", NO_ARITHMETIC)
def test_what_is_no_arithmetic_is_refused_and_never_run(expression: str):
    with pytest.raises(ValueError):  # noqa: PT011 - many messages
        calculate(expression)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("It is so.\n#### 72", "72"),
        ("#### 1,234", "1234"),
        ("#### 5\n#### 6", "6"),
        ("####7", None),
        ("The answer is 72.", None),
        ("#### 72" + " " * 300, None),
        ("#### -3.5", "-3.5"),
        ("#### seventy", None),
    ],
)
def test_the_answer_is_the_last_number_after_four_hashes_near_the_end(reply: str, answer: str | None):
    assert answer_in(reply) == answer


def test_every_template_is_drawn_and_its_numbers_can_be_read_from_its_text():
    drawn: set[str] = set()
    for number in range(300):
        task = draw_task(number)
        found = [(template, template.numbers_in(task.user)) for template in TEMPLATES]
        (template, values), *others = [(template, values) for template, values in found if values is not None]
        assert others == []
        assert template.formula.format(**values) == task.data["formula"]
        assert calculate(str(task.data["formula"])) == task.data["answer"]
        drawn.add(template.text)
    assert len(drawn) == len(TEMPLATES)


ROWS = [{"question": f"What is {n} plus {n}?", "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n:,}"} for n in
        range(490, 530)]  # fmt: skip


def test_a_file_of_problems_is_a_scenario_with_a_fifth_held_out(tmp_path: Path):
    (tmp_path / "school.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, ROWS[0]]))
    scenario = find_scenario(f"word_math:{tmp_path}/school.jsonl")
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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"question": "How many?"}\n', "has no question and answer"),
        ('{"question": "How many?", "answer": "many"}\n', "does not end with '#### ' and a number"),
        ('{"question": "", "answer": "#### 1"}\n', "does not end with"),
        ("[]\n", "holds no problems|no question"),
        ("", r"problems\.jsonl"),
        ("{broken\n", r"problems\.jsonl"),
    ],
)
def test_what_is_no_problem_is_told_with_its_place(tmp_path: Path, content: str, said: str):
    file = tmp_path / "problems.jsonl"
    file.write_text(content)
    with pytest.raises(GavelError, match=said):
        find_scenario(f"word_math:{file}")


def test_a_missing_file_and_a_directory_without_splits_are_told(tmp_path: Path):
    (tmp_path / "all.jsonl").touch()
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ScenarioError, match=rf"{path} is no file, and no directory .* begin with train and test"):
            find_scenario(f"word_math:{path}")


SHORT = (
    "The sea is deep and blue.", "Is the sea not calm today?", '"The Sea roars at night!"', "Seas are wide and salty.",
)  # fmt: skip
OTHER = (
    "The sea is deep. It is blue.", "The sea is deep and blue", "The sea.", "", None, "It is deep and blue.",
    "The sea is a vast and ancient body of salt water that surrounds all of our planet.",
)  # fmt: skip


@pytest.mark.parametrize("reply", SHORT + OTHER)
def test_a_short_sentence_about_the_topic_succeeds_and_all_else_does_not(reply: str | None) -> None:
    tasks = [*one_sentence.scenario.tasks("train"), *one_sentence.scenario.tasks("held_out")]
    (task,) = [each for each in tasks if each.data["topic"] == "the sea"]
    messages = [{"role": "user", "content": task.user}, {"role": "assistant", "content": reply}]
    attempt = Trajectory(messages_and_choices=messages, metadata={"task": task.model_dump()})
    assert one_sentence.succeeded(attempt) == (reply in SHORT)


def test_held_out_orders_are_new_pairs_of_known_forms_and_readers() -> None:
    train, held_out = writing.scenario.tasks("train"), writing.scenario.tasks("held_out")
    assert len(train) + len(held_out) == len(writing.FORMS) * len(writing.READERS)
    for key in ("form", "reader"):
        assert {str(task.data[key]) for task in held_out} <= {str(task.data[key]) for task in train}
