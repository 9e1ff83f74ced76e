"""A cassette's replies in one SQLite file, which several processes may share.

Every reply is committed before `keep` returns, so it survives the death of its process. A file that is not a cassette
is refused and left as it is; one of an older format is upgraded when it is opened for writing, and read as it is when
it is opened for replay.
"""

import os
import re
import sqlite3
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from gavel.llm.cassette_storage import Claim, Entry, StoredReply
from gavel.llm.errors import CassetteError
from gavel.llm.question import Question
from gavel.llm.types import Reply

FORMAT_VERSION = 2
"""In SQLite's `user_version`. 0 = a new file, or one from before there were versions; 1 = all replies were kept, those
that could not be used too, and nothing was claimed."""
_HEADER = b"SQLite format 3\0"
_OTHER_FILE = "Name another file for the cassette."
_LOCKED_SECONDS = 60.0
_STUCK_MILLISECONDS = 500
"""For how long a statement waits for another program's lock; and each later one, once a lock has outlasted that."""

_FIRST_TABLE = """
CREATE TABLE IF NOT EXISTS replies (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    messages_key TEXT NOT NULL,
    model TEXT NOT NULL,
    params TEXT NOT NULL,
    schema TEXT NOT NULL,
    messages TEXT NOT NULL,
    text BLOB NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cost_usd REAL,
    finish_reason TEXT NOT NULL,
    served_by TEXT NOT NULL,
    replied_at REAL NOT NULL
) STRICT
"""
"""Of format 1."""
_REPAIRED_BY = "ALTER TABLE replies ADD COLUMN repaired_by TEXT NOT NULL DEFAULT ''"
_OTHERS = (
    "CREATE INDEX IF NOT EXISTS by_key ON replies (key, id)",
    "CREATE INDEX IF NOT EXISTS by_messages ON replies (messages_key)",
    """
    CREATE TABLE IF NOT EXISTS claims (
        key TEXT PRIMARY KEY,
        holder TEXT NOT NULL,
        beats INTEGER NOT NULL,
        renewed_at REAL NOT NULL
    ) STRICT
    """,
)
_FIRST_COLUMNS = frozenset(re.findall(r"^    (\w+) ", _FIRST_TABLE, re.MULTILINE))
_REPLY = "text, prompt_tokens, completion_tokens, cost_usd, finish_reason, served_by"


class SqliteStorage:
    """The replies in the file at `path`; with `read_only` the file must exist, and nothing is written to it."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Opens the file. Raises `CassetteError` when it is not a cassette, or of a newer format."""
        self._path = path
        with self._errors():
            self._db, version = _open_to_read(path) if read_only else _open_to_write(path)
        self._repaired_by = "repaired_by" if version >= 2 else "''"

    def replies(self, key: str) -> list[StoredReply]:
        query = f"SELECT {_REPLY}, {self._repaired_by} FROM replies WHERE key = ? ORDER BY id"
        with self._errors():
            rows = self._db.execute(query, (key,)).fetchall()
        return [
            StoredReply(Reply(text.decode("utf-8", "surrogatepass"), *rest, cached=True, key=key), repaired_by)
            for text, *rest, repaired_by in rows
        ]

    def question(self, key: str) -> Mapping[str, str] | None:
        """The parts of a stored question, as JSON: `model`, `params`, `schema` and `messages`."""
        names = ("model", "params", "schema", "messages")
        with self._errors():
            row = self._db.execute(
                f"SELECT {', '.join(names)} FROM replies WHERE key = ? ORDER BY id LIMIT 1", (key,)
            ).fetchone()
        return None if row is None else dict(zip(names, row, strict=True))

    def keep(self, entries: Sequence[Entry]) -> None:
        with self._errors(), self._transaction():
            for entry in entries:
                row = _row(entry)
                known = self._db.execute(
                    "SELECT 1 FROM replies WHERE key = ? AND text = ?", (row["key"], row["text"])
                ).fetchone()
                if known is None:
                    names, marks = ", ".join(row), ", ".join("?" * len(row))
                    self._db.execute(f"INSERT INTO replies ({names}) VALUES ({marks})", tuple(row.values()))

    def similar(self, question: Question) -> list[Mapping[str, str]]:
        columns, names = "model, params, schema, messages", list(question.parts)
        with self._errors():
            rows = (
                self._db.execute(
                    f"SELECT {columns} FROM replies WHERE messages_key = ?", (question.messages_key,)
                ).fetchall()
                or self._db.execute(
                    f"SELECT {columns} FROM replies ORDER BY model = ? DESC, id DESC LIMIT 50", (question.model,)
                ).fetchall()
            )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def claim(self, key: str, holder: str) -> Claim | None:
        with self._errors(), self._transaction():
            row = self._db.execute("SELECT holder, beats, renewed_at FROM claims WHERE key = ?", (key,)).fetchone()
            if row is None:
                self._db.execute("INSERT INTO claims VALUES (?, ?, 0, ?)", (key, holder, time.time()))
                return None
        other, beats, renewed_at = row
        return Claim(other, beats, time.time() - renewed_at)

    def take_over(self, key: str, holder: str, claim: Claim) -> bool:
        with self._errors():
            taken = self._db.execute(
                "UPDATE claims SET holder = ?, beats = 0, renewed_at = ? WHERE key = ? AND holder = ? AND beats = ?",
                (holder, time.time(), key, claim.holder, claim.beats),
            )
            return taken.rowcount == 1

    def renew(self, holder: str) -> None:
        with self._errors():
            self._db.execute(
                "UPDATE claims SET beats = beats + 1, renewed_at = ? WHERE holder = ?", (time.time(), holder)
            )

    def release(self, key: str, holder: str) -> None:
        with self._errors():
            self._db.execute("DELETE FROM claims WHERE key = ? AND holder = ?", (key, holder))

    def close(self) -> None:
        with self._errors():
            self._db.close()

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                self._db.execute(f"PRAGMA busy_timeout = {_STUCK_MILLISECONDS}")
            raise CassetteError(f"the cassette {self._path} cannot be used: {error}.", _OTHER_FILE) from error

    @contextmanager
    def _transaction(self) -> Generator[None]:
        with _transaction(self._db):
            yield


def check_directory(path: Path) -> None:
    """Raises `CassetteError` when no file can be made at `path`; makes none, nor its directories."""
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    if not parent.is_dir():
        raise CassetteError(f"the cassette {path} cannot be used: {parent} is not a directory.", _OTHER_FILE)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CassetteError(f"the cassette {path} cannot be used: {parent} is not writable.", _OTHER_FILE)


def _row(entry: Entry) -> dict[str, object]:
    question, reply = entry.question, entry.reply
    return {
        "key": question.key,
        "messages_key": question.messages_key,
        **question.parts,
        "text": reply.text.encode("utf-8", "surrogatepass"),
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "cost_usd": reply.cost_usd,
        "finish_reason": reply.finish_reason,
        "served_by": reply.served_by,
        "replied_at": time.time(),
        "repaired_by": entry.repaired_by,
    }


@contextmanager
def _transaction(db: sqlite3.Connection) -> Generator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _open_to_read(path: Path) -> tuple[sqlite3.Connection, int]:
    """A read-only connection, and the file's format version."""
    if not path.exists():
        raise CassetteError(
            f"there is no cassette to replay at {path}.", 'Record it first: Cassette(path, mode="cache").'
        )
    _check_untouched(path)
    connection = _connect_read_only(path, "mode=ro")
    return connection, _check_format(connection, path)


def _open_to_write(path: Path) -> tuple[sqlite3.Connection, int]:
    """A connection in autocommit mode: every statement that returned is on file, even when the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_untouched(path)
    connection = sqlite3.connect(path, timeout=_LOCKED_SECONDS, isolation_level=None)
    version = _check_format(connection, path)
    _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
    connection.execute("PRAGMA synchronous = NORMAL")  # survives a kill; only a power cut may cost the last rows
    if version < FORMAT_VERSION:
        with _transaction(connection):
            connection.execute(_FIRST_TABLE)
            if "repaired_by" not in _columns(connection):  # another process may have been faster
                connection.execute(_REPAIRED_BY)
            for statement in _OTHERS:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    return connection, FORMAT_VERSION


def _patiently(work: Callable[[], object]) -> None:
    """SQLite does not wait for the lock that changing to WAL takes."""
    patience = time.monotonic() + _LOCKED_SECONDS
    while True:
        try:
            work()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                raise
            time.sleep(0.01)


def _connect_read_only(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=_LOCKED_SECONDS)


def _check_untouched(path: Path) -> None:
    """Refuses a file that is not a cassette before a connection may write to it: SQLite writes to a database with a
    write-ahead log when its last connection closes, and takes a very short file for an empty database."""
    try:
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    except FileNotFoundError:
        return
    if not header:
        return
    if header != _HEADER:
        raise _not_a_cassette(path)
    has_log = path.with_name(f"{path.name}-wal").exists()  # without a log, mode=ro would leave an empty one behind
    with closing(_connect_read_only(path, "mode=ro" if has_log else "immutable=1")) as connection:
        _check_format(connection, path)


def _check_format(connection: sqlite3.Connection, path: Path) -> int:
    """The format version of the file, 0 also when it is empty. Closes the connection and raises `CassetteError` when
    the version is newer than ours, or the database is not a cassette."""
    try:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        columns = _columns(connection)
        is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    except sqlite3.Error:
        connection.close()
        raise
    if version > FORMAT_VERSION:
        connection.close()
        raise CassetteError(
            f"the cassette {path} has format version {version}, and this Gavel reads up to {FORMAT_VERSION}.",
            "Install the version of Gavel that wrote it, or a newer one, or take another file.",
        )
    expected = _FIRST_COLUMNS | ({"repaired_by"} if version >= 2 else set[str]())
    if not (columns >= expected or (is_empty and version == 0)):
        connection.close()
        raise _not_a_cassette(path)
    return version


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(replies)")}


def _not_a_cassette(path: Path) -> CassetteError:
    return CassetteError(f"the file {path} cannot be used: it is not a cassette.", _OTHER_FILE)
