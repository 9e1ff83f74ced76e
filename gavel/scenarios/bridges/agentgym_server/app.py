"""The HTTP interface of a served scenario: both dialects of AgentGym's clients at once.

    POST /create                           -> {"id": 0, "env_idx": 0, …}
    POST /reset  {"id": 0, "data_idx": 3}  -> {"observation": "…", …}  (`game`, `item_id`, `session_id`, `idx`, `seed`)
    POST /step   {"id": 0, "action": "Thought: …\nAction: …"}  -> {"observation", "state", "reward", "done", …}
    GET  /observation?id=0   GET /detail?id=0   POST /close {"id": 0}
    GET  /  GET /metadata  GET /tasks?start=0&stop=100       what this server is, which AgentGym's own do not tell

Clients that say `env_idx` send back what `/create` answered: its number, or the whole object. Beside `env_idx`, `id` is
the item. A request that cannot be served is answered with status 200 and `{"error": …}`, as dialect A has it; without
the key with 401, beyond the most environments with 503.
"""

import asyncio
import hmac
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

from aiohttp import web

from gavel.base.network import is_loopback
from gavel.scenarios.bridges.agentgym_server.held import Environment, Environments, FullError, HeldError, shown
from gavel.scenarios.bridges.agentgym_server.items import Items
from gavel.scenarios.environment import tools_of
from gavel.scenarios.scenario import Scenario

_INDEX = ("data_idx", "game", "item_id", "session_id", "idx", "seed")
_NUMBER = re.compile(r"(\d{1,18})|\{'id': (\d{1,18}),.*\}", re.DOTALL)
"""An environment in a query: its number, or the answer to `/create` as Python writes it."""
_TURN = {"role", "content", "tool_calls"}
_MOST_BYTES = 2**20
_MOST_TASKS = 1000
"""In one answer."""
_SWEEP_SECONDS = 5.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(
    scenario: Scenario, *, key: str | None = None, most: int = 256, idle_seconds: float = 900.0
) -> web.Application:
    """`key`: what requests must bring as `Authorization: Bearer`; without one only this machine is answered."""
    served = _Served(scenario, most, idle_seconds)
    app = web.Application(client_max_size=_MOST_BYTES, middlewares=[_guard(key), _errors])
    app.add_routes(
        [
            web.get("/", served.greet),
            web.get("/metadata", served.metadata),
            web.get("/tasks", served.tasks),
            web.post("/create", served.create),
            web.post("/reset", served.reset),
            web.post("/step", served.step),
            web.post("/close", served.close),
            web.get("/observation", served.observation),
            web.get("/detail", served.detail),
            web.get("/filtered_vocab", served.filtered_vocab),
        ]
    )
    app.cleanup_ctx.append(served.kept_tidy)
    return app


class _Served:
    """The handlers."""

    def __init__(self, scenario: Scenario, most: int, idle_seconds: float) -> None:
        self._scenario = scenario
        self._items = Items.of(scenario)
        self._environments = Environments(self._items, most=most, idle_seconds=idle_seconds)

    async def kept_tidy(self, app: web.Application) -> AsyncGenerator[None]:
        """Ends idle environments while the server runs, and all of them with it."""
        sweeping = asyncio.create_task(self._sweep())
        yield
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        await self._environments.close_all()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self._environments.close_idle()

    async def greet(self, request: web.Request) -> web.Response:
        return web.json_response({"gavel": "agentgym", "scenario": self._scenario.name})

    async def metadata(self, request: web.Request) -> web.Response:
        scenario = self._scenario
        schemas = list(scenario.toolbox.schemas)
        if isinstance(scenario.environment, type):
            schemas += tools_of(scenario.environment).schemas
        return web.json_response(
            {
                "scenario": scenario.name,
                "system": scenario.system,
                "rubric": scenario.rubric,
                "tools": schemas,
                "max_turns": scenario.max_turns,
                "max_steps": scenario.max_steps,
                "call_seconds": scenario.call_seconds,
                "tasks": {"train": self._items.train, "held_out": self._items.held_out},
                "success": scenario.success is not None,
                "hand_reward": scenario.hand_reward is not None,
                "measures": list(scenario.measures),
            }
        )

    async def tasks(self, request: web.Request) -> web.Response:
        start, stop = (_number(request.query.get(name, default)) for name, default in (("start", "0"), ("stop", "100")))
        return web.json_response(self._items.described(start, min(stop, start + _MOST_TASKS)))

    async def create(self, request: web.Request) -> web.Response:
        await self._environments.close_idle()
        environment = self._environments.create()
        return web.json_response(shown(environment.number, {"observation": "", "reward": 0.0, "done": False}))

    async def reset(self, request: web.Request) -> web.Response:
        body = await _body(request)
        names = _INDEX if "env_idx" not in body else ("id", *_INDEX)
        name = next((name for name in names if body.get(name) is not None), None)
        item, seed = body.get(name or ""), body.get("episode_seed")
        environment = self._environment(body)
        return web.json_response(
            await self._environments.reset(
                environment, 0 if name is None else _number(item), None if seed is None else _number(seed)
            )
        )

    async def step(self, request: web.Request) -> web.Response:
        body = await _body(request)
        environment = self._environment(body)
        action, ended = body.get("message") or body.get("action"), body.get("finish_reason")
        if not isinstance(action, str | dict) or not isinstance(ended, str | None):
            raise HeldError('a step is {"id": 0, "action": "text"}')
        if isinstance(action, dict) and not action.keys() & _TURN:
            raise HeldError('an action is a text, or a turn as {"role": "assistant", "content": "text"}')
        return web.json_response(
            await self._environments.step(environment, cast("str | dict[str, Any]", action), finish_reason=ended)
        )

    async def close(self, request: web.Request) -> web.Response:
        await self._environments.close(self._environment(await _body(request)))
        return web.json_response({"closed": True})

    async def observation(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(request).get("observation", ""))

    async def detail(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(request))

    async def filtered_vocab(self, request: web.Request) -> web.Response:
        """The words that Wordle's client shows in its own opening; a scenario has none."""
        self._shown(request)
        return web.json_response([])

    def _environment(self, body: dict[str, Any]) -> Environment:
        named = body.get("env_idx", body.get("id"))
        return self._environments.find(named.get("id") if isinstance(named, dict) else named)

    def _shown(self, request: web.Request) -> dict[str, Any]:
        given = request.query.get("env_idx", request.query.get("id", ""))
        if (named := _NUMBER.fullmatch(given)) is None:
            raise HeldError(f"{given!r:.40} is no whole number")
        return self._environments.find(int(named[1] or named[2])).shown


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body: Any = json.loads(await request.text() or "{}")
    except (ValueError, RecursionError, LookupError) as error:  # the last for a charset that is none
        raise HeldError("the body is no JSON") from error
    if not isinstance(body, dict):
        raise HeldError("the body is no JSON object")
    return cast("dict[str, Any]", body)


def _number(value: Any) -> int:
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 20:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise HeldError(f"{value!r:.40} is no whole number")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except FullError as error:
        return web.json_response({"error": error.message}, status=503)
    except HeldError as error:
        return web.json_response({"error": error.message})


def _guard(key: str | None) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if key is None:
            host = request.url.host or ""
            if not is_loopback(host) or "Origin" in request.headers:  # a page of another site, in a browser here
                return web.json_response({"error": "this server answers programs on its own machine alone"}, status=403)
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if key is not None and not hmac.compare_digest(given, f"Bearer {key}".encode()):
            return web.json_response({"error": "the key is missing or another one"}, status=401)
        return await handler(request)

    return guard
