"""What the databases' errors mean: an outage, a conflict with another process, or a mistake; and what to do.

except exc.DBAPIError as error:
    if is_outage(error) and not is_conflict(error):
        raise no_answer(error) from error
"""

import sqlite3

from sqlalchemy import exc

from gavel.judge.service.errors import DatabaseUnavailableError

_CONFLICTS = ("40001", "40P01")
"""PostgreSQL's states for a serialization failure and a deadlock."""
_BROKEN = "Stop the service, and restore the file from a copy, or begin with a new one."
_REMEDIES = {
    sqlite3.SQLITE_FULL: "Make room on the disk of the database's file.",
    sqlite3.SQLITE_IOERR: "Make room on the disk of the database's file, and look at the disk.",
    sqlite3.SQLITE_READONLY: "Make the database's file and its directory writable for the service.",
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_NOTADB: _BROKEN,
}
"""By SQLite's primary result code."""
_READ_ONLY = "25006"
"""PostgreSQL's state for a write to a server that allows reading alone."""


def no_answer(error: Exception) -> DatabaseUnavailableError:
    code = getattr(error.orig, "sqlite_errorcode", 0) if isinstance(error, exc.DBAPIError) else 0
    remedy = _REMEDIES.get(code & 0xFF, "Try again; if it lasts, look at the database.")
    return DatabaseUnavailableError(f"the database does not answer: {reason(error)}.", remedy)


def is_outage(error: exc.DBAPIError) -> bool:
    """Whether no work can succeed now."""
    if error.connection_invalidated or isinstance(error, exc.OperationalError):
        return True
    is_broken = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return is_broken or getattr(error.orig, "sqlstate", None) == _READ_ONLY


def is_conflict(error: Exception) -> bool:
    """Whether a transaction was ended for the sake of another one, and may succeed now."""
    return isinstance(error, exc.DBAPIError) and getattr(error.orig, "sqlstate", None) in _CONFLICTS


def reason(error: Exception) -> str:
    """The driver's own words, without the statement and its parameters, which may hold transcripts."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    return " ".join(str(cause).split())
