from datetime import datetime

import pytest
from pydantic import TypeAdapter, ValidationError

from gavel.judge.service.schemas.bodies import Seconds, unix_seconds

SECONDS = TypeAdapter[float](Seconds)


@pytest.mark.parametrize(
    "text",
    [
        "1795338000",
        "2026-11-22T09:00",
        "2026-11-22 09:00",
        "2026-11-22T09:00:00Z",
        "2026-11-22T10:00:00+01:00",
        "2026-11-22T10:00:00 01:00",
    ],
)
def test_a_time_is_read_however_it_is_written(text: str) -> None:
    assert SECONDS.validate_python(text) == 1795338000


def test_a_time_without_a_zone_is_utc() -> None:
    assert unix_seconds("2026-11-22T09:00") == datetime.fromisoformat("2026-11-22T09:00+00:00").timestamp()


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "23:59", "2026-11-22T09:00 tomorrow"])
def test_what_is_no_time_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(ValidationError, match="such as 2026-11-22T09:00"):
        SECONDS.validate_python(text)
