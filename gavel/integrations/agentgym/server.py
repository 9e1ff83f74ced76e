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
import json
import re
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web

from gavel.base.errors import GavelError, contain_cancellation
from gavel.integrations._serving import guard
from gavel.llm.types import Message, text_of
from gavel.scenarios.agent_styles.react import form_of
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.stepped_episode import Moment, SteppedEpisode, SteppedEpisodeError, outcome
from gavel.scenarios.task import Task
from gavel.scenarios.text_calls import Unreadable, Words, calls_message, read_turn

_MOST_TASKS = 20_000
"""Max tasks of a split that are served."""
_MOST_BYTES = 2**20
_SWEEP_SECONDS = 5.0
_INDEX = ("data_idx", "game", "item_id", "session_id", "idx", "seed")
_NUMBER = re.compile(r"(\d{1,18})|\{'id': (\d{1,18}),.*\}", re.DOTALL)
"""An environment in a query: its number, or the response to `/create` as Python prints it."""


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

    def show(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """A response with the field names of all of AgentGym's clients. `id` comes first: see `_NUMBER`."""
        names = {"env_idx": self.number, "state": answer["observation"], "terminated": answer["done"]}
        self.shown = {"id": self.number, **answer, **names, "available_actions": []}
        return self.shown

    def one_request(self) -> asyncio.Lock:
        """Its lock. Raises `HeldError` while another request about it is being answered."""
        if self.answering.locked():
            raise HeldError(f"the environment {self.number} is asked twice at once: await one answer")
        return self.answering


def create_app(
    scenario: Scenario, *, key: str | None = None, most: int = 256, idle_seconds: float = 900.0
) -> web.Application:
    """Creates the application. `key`: required as `Authorization: Bearer`; without one only this machine is served.

    At most `most` environments are open; one without a request for `idle_seconds` is ended.
    """
    served = _Served(scenario, most, idle_seconds)
    app = web.Application(client_max_size=_MOST_BYTES, middlewares=[guard(key, "error")])
    for path in ("/", "/observation", "/detail", "/filtered_vocab"):
        app.router.add_get(path, served.handle)
    for path in ("/create", "/reset", "/step", "/close"):
        app.router.add_post(path, served.handle)
    app.cleanup_ctx.append(served.sweep)
    return app


class _Served:
    """The handlers of an application. For one event loop."""

    def __init__(self, scenario: Scenario, most: int, idle_seconds: float) -> None:
        self._scenario = scenario
        self._train, self._held_out = (min(_MOST_TASKS, len(scenario.tasks(split))) for split in ("train", "held_out"))
        self._most = most
        self._idle_seconds = idle_seconds
        self._next = 0
        self._held: dict[int, Environment] = {}

    async def sweep(self, app: web.Application) -> AsyncGenerator[None]:
        """Ends idle environments while the server runs, and all of them at its end."""

        async def keep_sweeping() -> None:
            while True:
                await asyncio.sleep(_SWEEP_SECONDS)
                await self._close_idle()

        sweeping = asyncio.create_task(keep_sweeping())
        yield
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        async with asyncio.TaskGroup() as tasks:
            for environment in list(self._held.values()):
                tasks.create_task(self._close(environment))

    async def handle(self, request: web.Request) -> web.Response:
        try:
            status, answer = 200, await self._answer_to(request)
        except FullError as error:
            status, answer = 503, {"error": error.message}
        except HeldError as error:
            status, answer = 200, {"error": error.message}
        return web.json_response(answer, status=status)

    async def _answer_to(self, request: web.Request) -> Any:
        """The response. Raises `HeldError` for an invalid request."""
        match request.path:
            case "/":
                counts = {"train": self._train, "held_out": self._held_out}
                return {"gavel": self._scenario.name, **counts, "rubric": self._scenario.rubric}
            case "/create":
                await self._close_idle()
                return self._create().show({"observation": "", "reward": 0.0, "done": False})
            case "/reset" | "/step" | "/close":
                body = await _body(request)
                named: Any = body.get("env_idx", body.get("id"))
                environment = self._find(cast("dict[str, Any]", named).get("id") if isinstance(named, dict) else named)
                if request.path == "/close":
                    await self._close(environment)
                    return {"closed": True}
                return await (self._reset if request.path == "/reset" else self._step)(environment, body)
            case path:
                given = request.query.get("env_idx", request.query.get("id", ""))
                if (found := _NUMBER.fullmatch(given)) is None:
                    raise HeldError(f"{given!r:.40} is no whole number")
                shown = self._find(int(found[1] or found[2])).shown
                # A scenario has no words for the opening of Wordle's client.
                return {"/observation": shown.get("observation", ""), "/detail": shown}.get(path, [])

    def _create(self) -> Environment:
        if len(self._held) >= self._most:
            raise FullError(f"{len(self._held)} environments are open, as many as there may be: close one")
        environment = self._held[self._next] = Environment(self._next, time.monotonic())
        self._next += 1
        return environment

    async def _reset(self, environment: Environment, body: Mapping[str, Any]) -> dict[str, Any]:
        """Starts an episode; answers the agent's view, with the form of an action for agents without instructions."""
        task = self._task(body)
        async with environment.one_request():
            if environment.episode is not None:
                await environment.episode.close()
            environment.episode = SteppedEpisode(self._scenario, task)
            moment = await self._in_time(environment, environment.episode.start())
            environment.tools, opening = moment.tools, _told(moment.new)
            if moment.tools:
                system = [each for each in moment.new if each.get("role") in ("system", "developer")]
                user = [each for each in moment.new if each not in system]
                opening = "\n\n".join(filter(None, (_told(system), form_of(moment.tools), _told(user))))
            return environment.show(self._answer(environment.episode, moment, opening) | {"task_description": ""})

    async def _step(self, environment: Environment, body: Mapping[str, Any]) -> dict[str, Any]:
        """Takes a turn, parsed by `text_calls`; after an invalid one the agent may try again."""
        action = body.get("action")
        if not isinstance(action, str):
            raise HeldError('a step is {"id": 0, "action": "text"}')
        if (episode := environment.episode) is None:
            raise HeldError(f"the environment {environment.number} is not initialized: reset it first")
        if episode.over:
            raise HeldError(f"the task with environment {environment.number} has finished: reset it")
        async with environment.one_request():
            turn = read_turn(action, environment.tools)
            if isinstance(turn, Unreadable):
                return environment.show({"observation": turn.problem, "reward": 0.0, "score": 0.0, "done": False})
            message = {"content": turn.text} if isinstance(turn, Words) else calls_message(turn, episode.turns)
            moment = await self._in_time(environment, episode.act(message))
            environment.tools = moment.tools or environment.tools
            return environment.show(self._answer(episode, moment, _told(moment.new)))

    def _task(self, body: Mapping[str, Any]) -> Task:
        """The task of a number, held-out tasks after those of training. Raises `HeldError` for an unknown one."""
        names = _INDEX if "env_idx" not in body else ("id", *_INDEX)
        given: Any = next((body[name] for name in names if body.get(name) is not None), 0)
        if isinstance(given, bool) or re.fullmatch(r"-?\d{1,18}", str(given)) is None:
            raise HeldError(f"{given!r:.40} is no whole number")
        item, count = int(given), self._train + self._held_out
        if not 0 <= item < count:
            raise HeldError(f"there is no item {item}: items are 0 to {count - 1}")
        is_train = item < self._train
        return self._scenario.tasks("train" if is_train else "held_out")[item if is_train else item - self._train]

    def _find(self, number: object) -> Environment:
        environment = self._held.get(number) if isinstance(number, int) and not isinstance(number, bool) else None
        if environment is None:
            raise HeldError(f"the environment {number} is not valid: it was never created, was closed or has expired")
        environment.used = time.monotonic()
        return environment

    async def _close(self, environment: Environment) -> None:
        self._held.pop(environment.number, None)
        if environment.episode is not None:
            await environment.episode.close()

    async def _close_idle(self) -> None:
        before = time.monotonic() - self._idle_seconds
        for environment in [each for each in self._held.values() if each.used < before and not each.answering.locked()]:
            await self._close(environment)

    async def _in_time(self, environment: Environment, work: Coroutine[Any, Any, Moment]) -> Moment:
        try:
            async with asyncio.timeout(2 * self._scenario.call_seconds + 30):
                return await contain_cancellation(work)
        except RuntimeError as error:  # its rollout was cancelled
            raise HeldError(f"the environment {environment.number} was closed, and is not valid any more") from error
        except TimeoutError as error:
            await self._close(environment)
            raise HeldError(f"the environment {environment.number} did not answer in time, and has expired") from error
        except SteppedEpisodeError as error:
            raise HeldError(error.message) from error

    def _answer(self, episode: SteppedEpisode, moment: Moment, observation: str) -> dict[str, Any]:
        """The response about the episode. Raises `HeldError` for a failed episode: it has no reward, rather than 0."""
        answer = {"observation": observation, "reward": 0.0, "score": 0.0, "done": moment.over}
        if not moment.over:
            return answer
        if episode.trajectory.status == "failed":
            raise HeldError(f"the episode failed, and has finished: {episode.trajectory.status_reason}")
        found = outcome(self._scenario, episode.trajectory)
        reward = found.get("success", found.get("hand_reward", 0.0))
        return answer | {"reward": reward, "score": reward, "status": episode.trajectory.status}


def _told(messages: Sequence[Message]) -> str:
    """The messages for an agent: all but its own turns."""
    return "\n\n".join(text_of(each) for each in messages if each.get("role") != "assistant")


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body: Any = json.loads(await request.text() or "{}")
    except (ValueError, RecursionError, LookupError) as error:  # the last one for an unknown charset
        raise HeldError("the body is no JSON") from error
    if not isinstance(body, dict):
        raise HeldError("the body is no JSON object")
    return cast("dict[str, Any]", body)
