import csv
import io
from pathlib import Path

import pytest

from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged_file import COLUMNS, TableError, read_table, write_table
from gavel.scenarios.trajectory import RolloutError
from tests.judge.groups import desk, saying

RULES = "- calls get_order before refund"


async def judged() -> list[TrajectoryGroup]:
    judge = Judge("stand-in", rubric=RULES)
    attempts = TrajectoryGroup([desk("refund", reward=0.25), desk("get_order", "refund")], metadata={"task": 'a,\n"b"'})
    odd = saying("\ud800 lone", "=1+1;\x00 two", metadata={"list": [1, None]})
    nobody = TrajectoryGroup(exceptions=[RolloutError(type="E", message="m")])
    return [await judge.score(attempts), nobody, await judge.score(odd)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
async def test_a_table_gives_back_the_very_groups(tmp_path: Path, suffix: str):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    groups, path = await judged(), tmp_path / f"judged{suffix}"
    write_table(path, groups, suffix)
    assert list(read_table(path)) == groups


async def test_its_first_columns_are_for_reading(tmp_path: Path):
    path = tmp_path / "judged.csv"
    write_table(path, await judged(), ".csv")
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert list(rows[0]) == list(COLUMNS)
    first, second = rows[:2]
    assert (first["group"], first["member"], first["score"], first["independent_reward"]) == ("1", "1", "0.0", "0.25")
    assert (second["group"], second["member"], second["score"], second["status"]) == ("1", "2", "1.0", "scored")
    assert first["explanation"].endswith("calls get_order before refund (get_order was never called).")


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n"])
def test_another_table_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(TableError, match="no table of judged groups"):
        list(read_table(path))
