"""A server that speaks as much of vLLM's HTTP API as the engine uses, over a tiny model, and fails when told to.

The real one runs in `test_conformance.py`; this one has the faults that a real one cannot be made to have.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gavel.trainer.engines.protocol import SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.policy import Policy
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import tiny_model

BASE = "org/base"
MAX_CONTEXT = 256


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class StandIn:
    """Adapters are taken note of, and applied where there is a policy to load them into."""

    def __init__(self, *, base: str = BASE, max_context: int = 200, policy: Policy | None = None) -> None:
        """`policy`: of the base model, to load adapters into; None: a tiny model without adapters."""
        self.base, self.max_context = base, max_context
        self._policy = policy
        self._versions: dict[str, int] = {}
        self.ends_after: int | None = None
        """The server dies when it has streamed so many events of a reply, and before it answers without a stream."""
        self.ignores_adapters = False
        """Adapters that are loaded from now on change nothing."""
        self.unscaled = False
        """Log-probs are those of temperature 1, as a vLLM without --logprobs-mode gives them."""
        self.ails: Literal["dying", "cuts off", "aborts", "breaks off", "unhealthy"] | None = None
        """Completions and health checks are answered 500 and 503; or the answer ends in its middle; or completions are
        aborted, and all but the first health check fail; or completions are aborted; or health checks fail."""
        self._checked = False
        self.missing: set[str] = set()
        """Paths that are not served, as without VLLM_ALLOW_RUNTIME_LORA_UPDATING or VLLM_SERVER_DEV_MODE."""
        self.asked: list[str] = []
        """The paths asked for, in order; a completion is noted when it is done too."""
        self.adapters: dict[str, list[str]] = {}
        """Name -> the files that were in its directory when it was loaded."""
        self.every_name: list[str] = []
        self.sampled_by: list[str] = []
        """The adapters that completions asked for."""
        self.go_on = threading.Event()
        self.go_on.set()
        model = tiny_model() if policy is None else policy.plain_model()
        self._engine = TransformersEngine(
            model, slots=8, max_context=max(MAX_CONTEXT, max_context), versions=1 if policy is None else 64
        )
        self.port = 0
        self._serve()
        self.url = f"http://127.0.0.1:{self.port}"

    def _serve(self) -> None:
        paths = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/v1/completions"]
        routes = [Route(path, self._post, methods=["POST"]) for path in paths]
        app = Starlette(routes=[*routes, Route("/v1/models", self._models), Route("/health", self._health)])
        listener = socket.create_server(("127.0.0.1", self.port))  # so that no other process takes the port
        self.port = listener.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._begin(listener)), daemon=True)
        self._thread.start()
        until(lambda: self._server.started)

    def die(self) -> None:
        """The server ends, whatever it was doing."""
        self._server.should_exit = self._server.force_exit = True
        for connection in list(self._server.server_state.connections):
            self._loop.call_soon_threadsafe(connection.transport.abort)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def start_again(self) -> None:
        """At the same address, without the adapters that it had."""
        if self._thread.is_alive():
            self.die()
        self._thread.join()
        self.adapters.clear()
        self.ends_after = None
        self._serve()

    def close(self) -> None:
        self.go_on.set()
        if self._thread.is_alive():
            self.die()
        self._thread.join()
        self._engine.close()

    async def _begin(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[listener])

    async def _models(self, request: Request) -> Response:
        adapters = [{"id": name, "root": "somewhere", "parent": self.base} for name in self.adapters]
        base = {"id": "served", "root": self.base, "parent": None, "max_model_len": self.max_context}
        return JSONResponse({"data": [base, *adapters]})

    async def _health(self, request: Request) -> Response:
        dead = self.ails in ("dying", "unhealthy") or (self.ails == "aborts" and self._checked)
        self._checked = True
        return Response(status_code=503 if dead else 200)

    async def _post(self, request: Request) -> Response:
        path = request.url.path
        self.asked.append(path)
        if path in self.missing:
            return JSONResponse({"detail": "Not Found"}, 404)
        if path == "/v1/completions" and self.ails == "cuts off":
            return StreamingResponse(_cut_off(), headers={"Content-Length": "1000"})
        if path == "/v1/completions" and self.ails == "dying":
            return JSONResponse({"error": {"message": "EngineCore encountered an issue.", "code": 500}}, 500)
        if path == "/v1/completions":
            body = await request.json()
            choice = await self._complete(body)
            if self.ends_after is not None and not body.get("stream"):
                await self._end()
            if body.get("stream"):
                return StreamingResponse(self._stream(choice), media_type="text/event-stream")
            return JSONResponse({"choices": [choice]})
        if path.endswith("lora_adapter"):
            body = await request.json()
            if path == "/v1/load_lora_adapter":
                config = json.loads((Path(body["lora_path"]) / "adapter_config.json").read_text())
                if bool(config.get("target_parameters")) != bool(body.get("is_3d_lora_weight")):  # of stacked experts
                    return JSONResponse({"error": {"message": "fused 3D MoE weights"}}, 400)
            await asyncio.to_thread(self._note, path, body)
        return Response("done")

    def _note(self, path: str, body: dict[str, Any]) -> None:
        name = body["lora_name"]
        if path.startswith("/v1/un"):
            del self.adapters[name]
        else:
            if self._policy is not None and not self.ignores_adapters:
                self._policy.load_adapter(Path(body["lora_path"]))
                self._engine.publish(self._policy, len(self.every_name))
            self._versions[name] = self._engine.adapter_version
            self.adapters[name] = [file.name for file in Path(body["lora_path"]).iterdir()]
            self.every_name.append(name)

    async def _stream(self, choice: dict[str, Any]) -> AsyncIterator[str]:
        """Two tokens in an event, the first with the prompt's ids; the last one has the reason of the end."""
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        for at in range(0, len(ids), 2):
            if at // 2 == self.ends_after:
                await self._end()
            part = {
                "index": 0,
                "text": "",
                "prompt_token_ids": [1] if at == 0 else None,
                "token_ids": ids[at : at + 2],
                "logprobs": {"token_logprobs": logprobs[at : at + 2]},
                "finish_reason": None if at + 2 < len(ids) else choice["finish_reason"],
            }
            yield f"data: {json.dumps({'choices': [part]})}\n\n"
            if self.ails == "breaks off":
                yield f"data: {json.dumps({'error': {'message': 'EngineCore died', 'code': 500}})}\n\n"
                return
        yield "data: [DONE]\n\n"

    async def _end(self) -> None:
        self.die()
        await asyncio.sleep(HANG_SECONDS)  # until the connection is closed

    async def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["model"] in self.adapters
        self.sampled_by.append(body["model"])
        await asyncio.to_thread(self.go_on.wait)
        ids = body["prompt"]
        asked = SamplingRequest(
            ids,
            frozenset(body.get("stop_token_ids", ())),
            body["max_tokens"],
            body["temperature"],
            body.get("seed", 0),
            None if self._policy is None else self._versions[body["model"]],
        )
        found = await asyncio.wrap_future(self._engine.submit(asked))
        logprobs = found.logprobs
        if self.unscaled:
            logprobs = self._engine.score([*ids, *found.token_ids])[len(ids) - 1 :]
        choice = {
            "token_ids": found.token_ids,
            "logprobs": {"token_logprobs": logprobs},
            "finish_reason": "abort" if self.ails in ("aborts", "breaks off") else found.finish_reason,
        }
        if "prompt_logprobs" in body:
            scores = await asyncio.to_thread(self._engine.score, ids)
            entries = [{str(token): {"logprob": score}} for token, score in zip(ids[1:], scores, strict=True)]
            choice["prompt_logprobs"] = [None, *entries]
        self.asked.append("completed")
        return choice


async def _cut_off() -> AsyncIterator[bytes]:
    yield b'{"choices": ['
