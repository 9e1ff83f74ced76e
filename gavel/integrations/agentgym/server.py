"""The HTTP interface of a served scenario, for both dialects of AgentGym's clients.

    POST /create                           -> {"id": 0, "env_idx": 0, …}
    POST /reset  {"id": 0, "data_idx": 3}  -> {"observation": "…", …}  (`game`, `item_id`, `session_id`, `idx`, `seed`)
    POST /step   {"id": 0, "action": "Thought: …\nAction: …"}  -> {"observation", "state", "reward", "done", …}
    GET  /observation?id=0   GET /detail?id=0   POST /close {"id": 0}
    GET  /                                 -> {"gavel": NAME, "train": 100, "held_out": 20}: items, by number

Clients that use `env_idx` send back the response to `/create`: its number, or the whole object. Beside `env_idx`, `id`
is the item. An invalid request is answered with status 200 and `{"error": …}`, as in dialect A; without the key with
401, above the limit of environments with 503.
"""

import asyncio
import hmac
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web

from gavel.base.errors import GavelError, contain_cancellation
from gavel.base.network import is_loopback
from gavel.llm.types import Message, text_of
from gavel.scenarios.agent_styles.react import form_of
from gavel.scenarios.scenario import Scenario, Split
from gavel.scenarios.stepped_episode import Moment, SteppedEpisode, SteppedEpisodeError, outcome
from gavel.scenarios.task import Task
from gavel.scenarios.text_calls import Unreadable, Words, calls_message, read_turn

MOST = 20_000
"""Max tasks of a split that are served."""


class HeldError(GavelError):
    """A request about an environment is invalid; the message is the response."""


class FullError(HeldError):
    """The limit of environments is reached."""


@dataclass(slots=True, eq=False)
class Environment:
    """A client's environment, with its episode."""

    number: int
    used: float
    """`time.monotonic()` of the last request."""
    episode: SteppedEpisode | None = None
    tools: Sequence[Message] = ()
    shown: dict[str, Any] = field(default_factory=dict[str, Any])
    """The last response."""
    answering: asyncio.Lock = field(default_factory=asyncio.Lock)


class Environments:
    """The environments of a server of one scenario. For one event loop."""

    def __init__(self, scenario: Scenario, *, most: int = 256, idle_seconds: float = 900.0) -> None:
        """At most `most` environments; one without a request for `idle_seconds` is ended."""
        self._scenario = scenario
        self.train, self.held_out = (min(MOST, len(scenario.tasks(split))) for split in ("train", "held_out"))
        self._most = most
        self._idle_seconds = idle_seconds
        self._next = 0
        self._held: dict[int, Environment] = {}
        self._seconds = 2 * scenario.call_seconds + 30
        """Max seconds of a request."""

    def _task(self, item: int) -> Task:
        """The task of a number, held-out tasks after those of training. Raises `HeldError` for an unknown one."""
        if not 0 <= item < (count := self.train + self.held_out):
            raise HeldError(f"there is no item {item}: items are 0 to {count - 1}")
        split: Split = "train" if item < self.train else "held_out"
        return self._scenario.tasks(split)[item if item < self.train else item - self.train]

    def create(self) -> Environment:
        """Creates an environment. Raises `FullError`."""
        if len(self._held) >= self._most:
            raise FullError(f"{len(self._held)} environments are open, as many as there may be: close one")
        environment = Environment(self._next, time.monotonic())
        self._next += 1
        self._held[environment.number] = environment
        return environment

    def find(self, number: object) -> Environment:
        """The environment of an id. Raises `HeldError` for an unknown one."""
        environment = self._held.get(number) if isinstance(number, int) and not isinstance(number, bool) else None
        if environment is None:
            raise HeldError(f"the environment {number} is not valid: it was never created, was closed or has expired")
        environment.used = time.monotonic()
        return environment

    async def reset(self, environment: Environment, item: int) -> dict[str, Any]:
        """Starts an episode; returns the agent's view. Raises `HeldError`."""
        task = self._task(item)
        async with _one_request(environment):
            if environment.episode is not None:
                await environment.episode.close()
            environment.episode = SteppedEpisode(self._scenario, task)
            moment = await self._in_time(environment, environment.episode.start())
            environment.tools = moment.tools
            answer = self._answer(environment, moment, _with_form(_told(moment.new), moment))
            environment.shown = shown(environment.number, answer | {"task_description": ""})
        return environment.shown

    async def step(self, environment: Environment, action: str) -> dict[str, Any]:
        """Takes a turn, parsed by `text_calls`. Raises `HeldError`."""
        if environment.episode is None:
            raise HeldError(f"the environment {environment.number} is not initialized: reset it first")
        if environment.episode.over:
            raise HeldError(f"the task with environment {environment.number} has finished: reset it")
        async with _one_request(environment):
            turn = read_turn(action, environment.tools)
            if isinstance(turn, Unreadable):  # an invalid turn: the agent may try again
                answer = {"observation": turn.problem, "reward": 0.0, "score": 0.0, "done": False}
            else:
                calls = not isinstance(turn, Words)
                message = calls_message(turn, environment.episode.turns) if calls else {"content": turn.text}
                moment = await self._in_time(environment, environment.episode.act(message))
                environment.tools = moment.tools or environment.tools
                answer = self._answer(environment, moment, _told(moment.new))
            environment.shown = shown(environment.number, answer)
        return environment.shown

    async def close(self, environment: Environment) -> None:
        self._held.pop(environment.number, None)
        if environment.episode is not None:
            await environment.episode.close()

    async def close_idle(self) -> None:
        """Ends idle environments."""
        before = time.monotonic() - self._idle_seconds
        for environment in [each for each in self._held.values() if each.used < before and not each.answering.locked()]:
            await self.close(environment)

    async def close_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for environment in list(self._held.values()):
                tasks.create_task(self.close(environment))

    async def _in_time(self, environment: Environment, work: Any) -> Moment:
        try:
            async with asyncio.timeout(self._seconds):
                return await contain_cancellation(work)
        except RuntimeError as error:  # its rollout was cancelled
            raise HeldError(f"the environment {environment.number} was closed, and is not valid any more") from error
        except TimeoutError as error:
            await self.close(environment)
            raise HeldError(f"the environment {environment.number} did not answer in time, and has expired") from error
        except SteppedEpisodeError as error:
            raise HeldError(error.message) from error

    def _answer(self, environment: Environment, moment: Moment, observation: str) -> dict[str, Any]:
        """The response about the episode. Raises `HeldError` for a failed episode: it has no reward, rather than 0."""
        answer = {"observation": observation, "reward": 0.0, "score": 0.0, "done": moment.over}
        if not moment.over:
            return answer
        assert environment.episode is not None
        trajectory = environment.episode.trajectory
        if trajectory.status == "failed":
            raise HeldError(f"the episode failed, and has finished: {trajectory.status_reason}")
        found = outcome(self._scenario, trajectory)
        reward = found.get("success", found.get("hand_reward", 0.0))
        return answer | {"reward": reward, "score": reward, "status": trajectory.status}


def _one_request(environment: Environment) -> asyncio.Lock:
    """The environment's lock. Raises `HeldError` while another request about it is being answered."""
    if environment.answering.locked():
        raise HeldError(f"the environment {environment.number} is asked twice at once: await one answer")
    return environment.answering


def shown(number: int, answer: dict[str, Any]) -> dict[str, Any]:
    """A response with the field names of all of AgentGym's clients. `id` comes first: see `_NUMBER`."""
    names: dict[str, Any] = {
        "env_idx": number,
        "state": answer["observation"],
        "terminated": answer["done"],
        "available_actions": [],
    }
    return {"id": number, **answer, **names}


def _told(messages: Sequence[Mapping[str, Any]]) -> str:
    """The messages for an agent: all but its own turns."""
    return "\n\n".join(text_of(dict(each)) for each in messages if each.get("role") != "assistant")


def _with_form(opening: str, moment: Moment) -> str:
    """The opening with the tools and the form of an action, for agents without other instructions."""
    if not moment.tools:
        return opening
    system, user = (
        _told([each for each in moment.new if (each.get("role") in ("system", "developer")) == is_system])
        for is_system in (True, False)
    )
    return "\n\n".join(filter(None, (system, form_of(moment.tools), user)))


_INDEX = ("data_idx", "game", "item_id", "session_id", "idx", "seed")
_NUMBER = re.compile(r"(\d{1,18})|\{'id': (\d{1,18}),.*\}", re.DOTALL)
"""An environment in a query: its number, or the response to `/create` as Python prints it."""
_MOST_BYTES = 2**20
_SWEEP_SECONDS = 5.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(
    scenario: Scenario, *, key: str | None = None, most: int = 256, idle_seconds: float = 900.0
) -> web.Application:
    """Creates the application. `key`: required as `Authorization: Bearer`; without one only this machine is served."""
    served = _Served(scenario, most, idle_seconds)
    app = web.Application(client_max_size=_MOST_BYTES, middlewares=[_guard(key)])
    app.add_routes(
        [
            web.get("/", served.greet),
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
    """The HTTP handlers of an application."""

    def __init__(self, scenario: Scenario, most: int, idle_seconds: float) -> None:
        self._scenario = scenario
        self._environments = Environments(scenario, most=most, idle_seconds=idle_seconds)

    async def kept_tidy(self, app: web.Application) -> AsyncGenerator[None]:
        """Ends idle environments while the server runs, and all of them at its end."""
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
        counts = {"train": self._environments.train, "held_out": self._environments.held_out}
        return web.json_response({"gavel": self._scenario.name, **counts, "rubric": self._scenario.rubric})

    async def create(self, request: web.Request) -> web.Response:
        await self._environments.close_idle()
        environment = self._environments.create()
        return web.json_response(shown(environment.number, {"observation": "", "reward": 0.0, "done": False}))

    async def reset(self, request: web.Request) -> web.Response:
        body = await _body(request)
        names = _INDEX if "env_idx" not in body else ("id", *_INDEX)
        item = next((body[name] for name in names if body.get(name) is not None), 0)
        return web.json_response(await self._environments.reset(self._environment(body), _number(item)))

    async def step(self, request: web.Request) -> web.Response:
        body = await _body(request)
        environment, action = self._environment(body), body.get("action")
        if not isinstance(action, str):
            raise HeldError('a step is {"id": 0, "action": "text"}')
        return web.json_response(await self._environments.step(environment, action))

    async def close(self, request: web.Request) -> web.Response:
        await self._environments.close(self._environment(await _body(request)))
        return web.json_response({"closed": True})

    async def observation(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(request).get("observation", ""))

    async def detail(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(request))

    async def filtered_vocab(self, request: web.Request) -> web.Response:
        """The words for the opening of Wordle's client; a scenario has none."""
        self._shown(request)
        return web.json_response([])

    def _environment(self, body: dict[str, Any]) -> Environment:
        named: Any = body.get("env_idx", body.get("id"))
        return self._environments.find(cast("dict[str, Any]", named).get("id") if isinstance(named, dict) else named)

    def _shown(self, request: web.Request) -> dict[str, Any]:
        given = request.query.get("env_idx", request.query.get("id", ""))
        if (named := _NUMBER.fullmatch(given)) is None:
            raise HeldError(f"{given!r:.40} is no whole number")
        return self._environments.find(int(named[1] or named[2])).shown


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body: Any = json.loads(await request.text() or "{}")
    except (ValueError, RecursionError, LookupError) as error:  # the last one for an unknown charset
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


def _guard(key: str | None) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if key is None and (not is_loopback(request.url.host or "") or "Origin" in request.headers):
            # a cross-site page in a browser on this machine
            return web.json_response({"error": "this server answers programs on its own machine alone"}, status=403)
        if key is not None and not hmac.compare_digest(given, f"Bearer {key}".encode()):
            return web.json_response({"error": "the key is missing or another one"}, status=401)
        try:
            return await handler(request)
        except HeldError as error:
            return web.json_response({"error": error.message}, status=503 if isinstance(error, FullError) else 200)

    return guard
