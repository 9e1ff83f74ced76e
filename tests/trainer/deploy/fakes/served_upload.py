"""What a host serves: the adapter that was really uploaded to it, or, as a broken one does, something else."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx

from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.policy.policy import Policy
from tests.fake_server import Answer, Call
from tests.trainer.deploy.trained_run import LORA
from tests.trainer.serving.served import serving


class ServedUpload:
    """An OpenAI-compatible endpoint behind a fake, begun by the first question, when everything has been uploaded."""

    def __init__(self, files: Callable[[], dict[str, bytes]], *, instead: Path | None = None) -> None:
        """`files`: what was uploaded, by name. `instead`: a checkpoint that it serves."""
        self._files = files
        self._instead = instead
        self._open = ExitStack()
        self._client: httpx.Client | None = None

    def answer(self, call: Call) -> Answer:
        if self._client is None:
            self._client = self._begin()
        answer = self._client.post("/chat/completions", json={**call.json, "model": "desk"})
        return Answer(answer.json(), answer.status_code)

    def _begin(self) -> httpx.Client:
        policy = Policy(EMBEDDED_POLICY, LORA)
        directory = self._instead or Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        if self._instead is None:
            for name, content in self._files().items():
                (directory / name).write_bytes(content)
        policy.load_adapter(directory)
        server = self._open.enter_context(serving(policy))
        return self._open.enter_context(httpx.Client(base_url=server.base_url, timeout=60, trust_env=False))

    def close(self) -> None:
        self._open.close()
