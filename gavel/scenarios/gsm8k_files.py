"""External word problems in GSM8K's form, as the scenario `word_math`.

    gavel train word_math:train.jsonl --model …       # a fifth is held out, by the problems' text
    gavel train word_math:gsm8k/main --model …        # train.* is trained on, and test.* held out

A row has `question` and `answer`; the answer ends with `#### 72`. JSON lines, packed or not, and parquet are read.
"""

import re
from pathlib import Path

from gavel.scenarios.formats.files import rows_by_file
from gavel.scenarios.formats.row import is_object
from gavel.scenarios.library.word_math import scenario_of
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task

_ANSWER = re.compile(r"####\s*(-?[\d.,]*\d)\s*$")
_HELD_OUT = 0.2


def scenario_at(address: str) -> Scenario:
    """The scenario of the problems in a file, or in a directory with train and test files. Raises `ScenarioError`."""
    path = Path(address)
    if path.is_file():
        return scenario_of(f"word_math-{path.name.split('.')[0]}", _tasks([path]), _HELD_OUT)
    train, test = (sorted(path.glob(f"{split}*")) for split in ("train", "test"))
    if not train or not test:
        raise ScenarioError(
            f"{path.absolute()} is no file, and no directory of files whose names begin with train and test",
            "Check the path, or name a file: word_math:problems.jsonl",
        )
    tasks, held_out = _tasks(train), _tasks(test)
    known = {task.id for task in tasks}
    return scenario_of(f"word_math-{path.name}", tasks, [task for task in held_out if task.id not in known])


def _tasks(files: list[Path]) -> list[Task]:
    """One task per problem, without duplicates."""
    tasks: dict[str, Task] = {}
    for row in (row for file in files for row in rows_by_file(file)[file]):
        if not is_object(row.value, "question", "answer"):
            raise ScenarioError(
                f"{row.where} is no problem: it has no question and answer",
                'A row looks like {"question": "…", "answer": "… #### 72"}.',
            )
        question, solution = str(row.value["question"]).strip(), str(row.value["answer"]).strip()
        found = _ANSWER.search(solution)
        if found is None or not question:
            raise ScenarioError(
                f"{row.where}: the answer {solution[-60:]!r} does not end with '#### ' and a number",
                "Write each answer as … #### 72.",
            )
        task = Task(user=question, data={"answer": found[1].replace(",", "")}, reference=solution)
        tasks.setdefault(task.id, task)
    if not tasks:
        raise ScenarioError(f"{', '.join(map(str, files))} holds no problems", "A row has question and answer.")
    return list(tasks.values())
