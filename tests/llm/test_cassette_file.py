import sqlite3
from pathlib import Path

import pytest

from gavel.llm.cassette import Cassette
from gavel.llm.cassette_storage import FORMAT_VERSION, SqliteStorage
from gavel.llm.errors import CassetteError
from tests.llm.questions import never, question, rows, said


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return found


def set_version(path: Path, number: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {number}")
    connection.close()


async def recorded(path: Path) -> Path:
    cassette = Cassette(path)
    await cassette.answer(question(), said)
    cassette.close()
    return path


async def test_a_new_file_has_the_current_format_version(tmp_path):
    assert version(await recorded(tmp_path / "c.sqlite")) == FORMAT_VERSION


@pytest.mark.parametrize("mode", ["cache", "replay"])
async def test_a_file_of_a_newer_format_is_refused_with_the_remedy_and_left_as_it_is(tmp_path, mode):
    path = await recorded(tmp_path / "c.sqlite")
    set_version(path, FORMAT_VERSION + 1)
    before = path.read_bytes()
    with pytest.raises(
        CassetteError, match=f"has format version {FORMAT_VERSION + 1}, and this Gavel reads up to {FORMAT_VERSION}"
    ) as error:
        await Cassette(path, mode).answer(question(), never)
    assert "Install the version of Gavel that wrote it" in error.value.remedy
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", ["cache", "replay"])
@pytest.mark.parametrize("content", [b"no database" * 100, b"no"])
async def test_a_file_that_is_no_cassette_is_refused_with_the_remedy_and_left_as_it_is(tmp_path, content, mode):
    path = tmp_path / "c.sqlite"
    path.write_bytes(content)
    cassette = Cassette(path, mode)
    for _ in range(2):
        with pytest.raises(CassetteError, match="cannot be used: it is not a cassette") as error:
            cassette.check()
        assert error.value.remedy == "Name another file for the cassette."
    with pytest.raises(CassetteError, match="cannot be used"):
        await cassette.answer(question(), said)
    assert path.read_bytes() == content


def test_a_directory_and_a_path_below_a_file_are_refused_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("text")
    for path in (tmp_path, tmp_path / "file" / "c.sqlite"):
        with pytest.raises(CassetteError, match="cannot be used") as error:
            Cassette(path).check()
        assert error.value.remedy == "Name another file for the cassette."


def foreign(path: Path, number: int, journal: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("CREATE TABLE replies (id INTEGER, author TEXT)")
    connection.execute(f"PRAGMA user_version = {number}")
    return connection


@pytest.mark.parametrize("mode", ["cache", "replay"])
@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
@pytest.mark.parametrize("number", [0, FORMAT_VERSION])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path, number, journal, mode):
    path = tmp_path / "c.sqlite"
    foreign(path, number, journal).close()
    before = path.read_bytes()
    with pytest.raises(CassetteError, match="it is not a cassette") as error:
        Cassette(path, mode).check()
    assert "Name another file" in error.value.remedy
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_database_that_another_program_was_killed_with_keeps_its_write_ahead_log(tmp_path):
    path, copy = tmp_path / "open.sqlite", tmp_path / "c.sqlite"
    with_log = foreign(path, 0, "WAL")
    for end in ("", "-wal"):
        Path(f"{copy}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    with_log.close()
    before = [Path(f"{copy}{end}").read_bytes() for end in ("", "-wal")]
    with pytest.raises(CassetteError, match="it is not a cassette"):
        Cassette(copy).check()
    assert [Path(f"{copy}{end}").read_bytes() for end in ("", "-wal")] == before


async def test_an_empty_file_becomes_a_cassette(tmp_path):
    path = tmp_path / "c.sqlite"
    path.touch()
    Cassette(path).check()
    assert version(path) == FORMAT_VERSION
    assert rows(path) == 0


async def test_a_file_is_checked_once_and_again_after_it_was_closed(tmp_path):
    path = await recorded(tmp_path / "c.sqlite")
    cassette = Cassette(path)
    cassette.check()
    set_version(path, FORMAT_VERSION + 1)
    cassette.check()
    cassette.close()
    with pytest.raises(CassetteError, match=f"format version {FORMAT_VERSION + 1}"):
        cassette.check()


def test_a_lock_that_outlasts_the_wait_is_waited_for_briefly_from_then_on(tmp_path, monkeypatch):
    monkeypatch.setattr("gavel.llm.cassette_storage._LOCKED_SECONDS", 0.05)
    monkeypatch.setattr("gavel.llm.cassette_storage._STUCK_MILLISECONDS", 7)
    storage = SqliteStorage(tmp_path / "c.sqlite")
    other = sqlite3.connect(tmp_path / "c.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(CassetteError, match="locked"):
        storage.claim("key", "holder")
    assert storage._db.execute("PRAGMA busy_timeout").fetchone() == (7,)
    other.execute("ROLLBACK")
    assert storage.claim("key", "holder") is None
    storage.close()
    other.close()
