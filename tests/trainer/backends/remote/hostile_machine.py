"""A model behind a server, and the patience of tests in which what cannot be mended is told."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.model import TrainableModel
from tests.backend_server import KEY

AT_ONCE = 60
"""Seconds of patience in which what no attempt can mend has long been told."""


def a_model(name: str = "clerk", project: str = "tests", **fields: Any) -> TrainableModel:
    return TrainableModel(name=name, project=project, base_model=EMBEDDED_POLICY, **fields)


@contextlib.asynccontextmanager
async def registered(url: str, name: str) -> AsyncGenerator[tuple[RemoteBackend, TrainableModel]]:
    async with RemoteBackend(url, KEY, patience=AT_ONCE) as backend:
        model = a_model(name)
        await model.register(backend)
        yield backend, model
