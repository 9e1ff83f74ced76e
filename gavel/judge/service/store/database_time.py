"""The clock that all processes of a database share, in SQL: Unix seconds when the statement runs.

    sa.update(judgements).values(lease_until=database_time() + seconds)

A construct of its own, so that one statement, made once, serves both databases.
"""

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class database_time(FunctionElement[float]):
    """On SQLite that of this machine, to the millisecond; on PostgreSQL that of its server."""

    type: sa.types.TypeEngine[float] = sa.Double()
    inherit_cache = True


@compiles(database_time, "sqlite")
def _of_sqlite(*_: object, **__: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_time, "postgresql")
def _of_postgresql(*_: object, **__: object) -> str:
    return "CAST(EXTRACT(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"
