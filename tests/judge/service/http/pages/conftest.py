"""A service whose judgements are put into its database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig
from tests.judge.service.http.pages.seeded import Site, site


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Site]:
    config = ServiceConfig(
        database=str(tmp_path / "service.sqlite"), judge=JudgeConfig(models="stand-in", rubric="- ends with a message")
    )
    async with site(config) as running:
        yield running
