"""An OpenAI-compatible endpoint on loopback in front of the policies that act in episodes.

A request belongs to the episode that was registered under its `X-Session-ID`. Its turns are sampled by that episode's
policy, at the episode's temperature and limits, and recorded as choices, so that they can be trained.
"""

import json
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from aiohttp import web

from gavel.base.network import pass_proxies
from gavel.integrations._conversations import add_turn
from gavel.llm.types import Message
from gavel.scenarios.episode import Episode, NoTurnError
from gavel.scenarios.trajectory import Trajectory

_MOST_BYTES = 64 * 2**20
_PASSED = ("tool_choice", "parallel_tool_calls", "response_format", "stop", "top_p", "max_completion_tokens")
"""Request fields that are passed on to the policy."""


class Relay:
    def __init__(self) -> None:
        self._sessions: dict[str, tuple[Episode, Trajectory]] = {}
        self._secret = secrets.token_hex(16)
        self.url = ""

    def register(self, session: str, episode: Episode) -> Trajectory:
        """Begins a session; its turns are added to the trajectory that is returned."""
        recorded = Trajectory()
        self._sessions[session] = episode, recorded
        return recorded

    def forget(self, session: str) -> None:
        self._sessions.pop(session, None)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_post(f"/{self._secret}/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            pass_proxies()  # from the client of verifiers
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/{self._secret}/v1"
            yield
        finally:
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        known = self._sessions.get(request.headers.get("X-Session-ID", ""))
        if known is None:
            return _problem(404, "no episode has this X-Session-ID")
        try:
            body: Any = json.loads(await request.text())
        except (ValueError, RecursionError) as error:
            return _problem(400, f"the body is no JSON: {error}")
        if not isinstance(body, dict) or not isinstance(cast(Message, body).get("messages"), list):
            return _problem(400, "messages are missing")
        (episode, recorded), body = known, cast(Message, body)
        model, tools = episode.model, cast("list[Message] | None", body.get("tools"))
        assert model is not None
        asked: Message = {name: body[name] for name in _PASSED if body.get(name) is not None}
        if episode.max_tokens is not None:
            given = asked.get("max_completion_tokens") or body.get("max_tokens")
            asked["max_completion_tokens"] = min(episode.max_tokens, given or episode.max_tokens)
        try:
            reply, choice = await episode.sample(
                model.openai_client(),
                model.get_inference_name(),
                body["messages"],
                tools or (),
                seed=None if episode.seed is None else episode.seed + sum(1 for _ in recorded.choices()),
                fields={**asked, **episode.fields},
            )
        except NoTurnError as error:
            return _problem(getattr(error.__cause__, "status_code", 502), error.message)
        add_turn(recorded, body["messages"], tools, choice)
        whole = reply.model_dump(mode="json", exclude_none=True)
        return await _stream(request, whole) if body.get("stream") else web.json_response(whole)


async def _stream(request: web.Request, whole: Message) -> web.StreamResponse:
    """The completion as server-sent events: one chunk with the message, one with its finish reason."""
    choice = whole["choices"][0]
    delta = dict(choice["message"])
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    shared = {key: whole[key] for key in ("id", "created", "model") if key in whole}
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    parts: list[Message] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        {"choices": [], "usage": whole.get("usage")},
    ]
    for part in parts:
        event: Message = {**shared, "object": "chat.completion.chunk", **part}
        await response.write(f"data: {json.dumps(event)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def _problem(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "gavel"}}, status=status)
