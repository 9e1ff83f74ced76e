"""AgentGym's environment servers on loopback: the wire of each published one, around one small world.

The world is the same for all: say the item's number to win. What differs is what the published servers differ in:
how an environment and an item are named, where the observation stands, what rewards mean, how errors are told.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tests.integrations.openenv.served import in_a_thread

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Route = tuple[str, str, Callable[[Any], Any]]


@dataclass
class Game:
    """One environment of a server."""

    item: int | None = None
    done: bool = False
    score: float = 0.0
    steps: int = 0
    answers: list[str] = field(default_factory=list)


class _Status(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def missing(*names: str) -> _Status:
    return _Status(422, json.dumps([{"loc": ["body", name], "msg": "Field required"} for name in names]))


class EnvServer:
    """A server in a thread of its own. `calls` is every request: (path, body)."""

    greeting: Any = "ok"
    prefix = ""
    field = "id"
    """What requests call an environment."""
    index = "data_idx"
    """What they call the item."""
    more: tuple[str, ...] = ()
    """Further required fields of /reset."""
    wants_body = False
    """Whether /create needs one."""
    first_id = 0
    tells_errors = True
    """Whether every error is `{"error": …}` with status 200; else they have a status."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.games: dict[int, Game] = {}
        self.delay = 0.0
        self.fail: Callable[[str], web.Response | None] = lambda path: None
        self.port = 0

    def __enter__(self) -> Self:
        self._running = contextlib.ExitStack()
        url = self._running.enter_context(in_a_thread(self.app(), self.port))
        self.port = int(url.rpartition(":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._running.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def count(self, path: str) -> int:
        return sum(each == path for each, _ in self.calls)

    def wait_for(self, path: str) -> None:
        """Returns when the path is asked for."""
        deadline = time.monotonic() + 60
        while not self.count(path):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def app(self) -> web.Application:
        async def greet(request: web.Request) -> web.Response:
            return web.json_response(self.greeting)

        app = web.Application()
        app.router.add_get("/", greet)
        for method, path, answer in self.routes():
            app.router.add_route(method, self.prefix + path, self._answering(path, answer))
        return app

    def _answering(self, path: str, answer: Callable[[Any], Any]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            text = await request.text()
            body = json.loads(text) if text else dict(request.query)
            self.calls.append((path, body if text or request.query else None))
            if self.delay:
                await asyncio.sleep(self.delay)
            if (failed := self.fail(path)) is not None:
                return failed
            try:
                found = answer(body if text or request.query else None)
            except _Status as error:
                return web.json_response({"detail": str(error)}, status=error.status)
            except Exception as error:
                if self.tells_errors:
                    return web.json_response({"error": str(error)})
                return web.Response(text="Internal Server Error", status=500)
            return web.json_response(found)

        return handle

    def routes(self) -> list[Route]:
        return [
            ("POST", "/create", self.create),
            ("POST", "/reset", self.reset),
            ("POST", "/step", self.step),
            ("GET", "/observation", lambda body: f"The number is {self.game(body).item}."),
        ]

    def game(self, body: Any) -> Game:
        number = int(body[self.field])
        if number not in self.games:
            raise ValueError(f"The id {number} is not valid.")
        return self.games[number]

    def create(self, body: Any) -> Any:
        if self.wants_body and body is None:
            raise missing("body")
        return self.created(self.new_game())

    def reset(self, body: Any) -> Any:
        if lacking := [name for name in (self.field, self.index, *self.more) if name not in body]:
            raise missing(*lacking)
        game = self.game(body)
        if body[self.index] >= 1000:
            raise IndexError("list index out of range")
        game.item, game.done, game.score, game.steps = body[self.index], False, 0.0, 0
        return self.begun(body[self.field], f"The number is {game.item}.")

    def step(self, body: Any) -> Any:
        game = self.game(body)
        if game.done:
            raise ValueError(f"The task with environment {body[self.field]} has finished.")
        return self.stepped(game, self.play(game, body["action"]))

    def created(self, number: int) -> Any:
        return {"id": number}

    def begun(self, number: int, text: str) -> Any:
        return {"id": number, "observation": text, "done": False, "reward": 0}

    def stepped(self, game: Game, text: str) -> Any:
        return {"observation": text, "reward": float(game.done), "done": game.done}

    def new_game(self) -> int:
        number = self.first_id + len(self.games)
        self.games[number] = Game()
        return number

    def play(self, game: Game, action: str) -> str:
        """What the world says; the game is done when the item's number is said."""
        game.steps += 1
        game.answers.append(action)
        if action == "crash":
            raise ValueError("the action made the environment stumble")
        game.done = action == f"say {game.item}"
        return "You win." if game.done else f"You said: {action}"


class TextCraft(EnvServer):
    """Wants a body to create; its first observation comes with it. Closes in its later releases."""

    greeting = "This is environment TextCraft."
    wants_body = True

    def created(self, number: int) -> Any:
        return {"id": number, "observation": "Goal: craft", "done": False, "reward": 0}

    def routes(self) -> list[Route]:
        return [*super().routes(), ("POST", "/close", self.close)]

    def close(self, body: Any) -> Any:
        self.game(body)
        del self.games[body["id"]]
        return True


class BabyAI(EnvServer):
    """Rewards 1 less a share of the steps; tells the sum as `score`; has no /observation and no /close."""

    greeting = "This is environment BabyAI."

    def begun(self, number: int, text: str) -> Any:
        return {"observation": text, "reward": 0, "score": 0, "deleted": False, "done": False}

    def stepped(self, game: Game, text: str) -> Any:
        reward = 1 - 0.9 * game.steps / 50 if game.done else 0
        game.score += reward
        return {"observation": text, "reward": reward, "score": game.score, "done": game.done}

    def routes(self) -> list[Route]:
        return [route for route in super().routes() if route[1] != "/observation"]


class AlfWorld(EnvServer):
    """Items are `game`, and a reset needs `world_type`; lists the available actions."""

    greeting = "This is environment AlfWorld."
    index = "game"
    more = ("world_type",)

    def begun(self, number: int, text: str) -> Any:
        return {"id": number, "observation": text, "available_actions": ["look", "say 3"], "task_type": "pick/7"}

    def stepped(self, game: Game, text: str) -> Any:
        actions = {"available_actions": ["look"]}
        return {"observation": text, "reward": float(game.done), "done": game.done, **actions}


class SciWorld(EnvServer):
    """Scores from -100 to 100; the task's description stands beside the first observation."""

    greeting = "This is environment ScienceWorld."

    def begun(self, number: int, text: str) -> Any:
        described = {"task_name": "boil", "var_num": 3, "task_description": "Your task is to count."}
        return {**described, "observation": text, "reward": 0, "score": 0, "deleted": False, "done": False}

    def stepped(self, game: Game, text: str) -> Any:
        before = game.score
        focus = game.answers[-1] == "focus on wrong"
        game.score = 100 if game.done else -100 if focus else min(75, game.score + 25)
        game.done = game.done or focus
        return {"observation": text, "reward": game.score - before, "score": game.score, "done": game.done}


class Maze(EnvServer):
    """One of two worlds of a server, below a path; its reset names no environment."""

    greeting = "This is environment LMRL-Gym."
    prefix = "/maze"
    index = "game"

    def begun(self, number: int, text: str) -> Any:
        return {"observation": text}


class Wordle(EnvServer):
    """Items are seeds; the allowed words are told apart."""

    greeting = "This is environment LMRL-Gym."
    prefix = "/wordle"
    index = "seed"

    def begun(self, number: int, text: str) -> Any:
        return {"id": number, "observation": "Let's start Wordle!"}

    def routes(self) -> list[Route]:
        return [*super().routes(), ("GET", "/filtered_vocab", lambda body: ["c r a n e", "s h i r e"])]


class DialectB(EnvServer):
    """Environments are called `env_idx` and are bare numbers; errors have a status."""

    field = "env_idx"
    index = "id"
    first_id = 7
    tells_errors = False

    def created(self, number: int) -> Any:
        return number

    def begun(self, number: int, text: str) -> Any:
        return text


class WebShop(DialectB):
    """The observation is `state`; a reset answers a pair; rewards may be parts of 1; closes."""

    index = "session_id"

    def begun(self, number: int, text: str) -> Any:
        return [text, None]

    def stepped(self, game: Game, text: str) -> Any:
        reward = 1.0 if game.done else 0.5 if game.answers[-1] == "click[Buy Now]" else 0.0
        game.done = game.done or reward > 0
        return {"state": text, "reward": reward, "done": game.done, "info": None}

    def routes(self) -> list[Route]:
        return [*super().routes(), ("POST", "/close", lambda body: {"closed": bool(self.games.pop(body["env_idx"]))})]


class SqlGym(DialectB):
    """Holds eight environments and gives them away again; says 503 at times; an error of the SQL is a 500."""

    index = "item_id"
    most = 8

    def create(self, body: Any) -> Any:
        if len(self.games) < self.most:
            return self.new_game()
        return self.first_id + self.count("/create") % self.most

    def begun(self, number: int, text: str) -> Any:
        return [text, None]

    def stepped(self, game: Game, text: str) -> Any:
        return {"state": text, "reward": float(game.done), "done": game.done, "info": {}}


class Weather(DialectB):
    """A tool environment: wants a body to create, and actions with their input."""

    wants_body = True

    def step(self, body: Any) -> Any:
        if " with Action Input: " not in body["action"] or not body["action"].startswith("Action: "):
            return {"observation": "Format error", "reward": 0.0, "done": False}
        return super().step({**body, "action": body["action"].removeprefix("Action: ").partition(" with ")[0]})


class SearchQA(DialectB):
    """Reads the whole reply."""

    wants_body = True

    def step(self, body: Any) -> Any:
        game = self.game(body)
        game.done = f"<answer>{game.item}</answer>" in body["action"]
        return self.stepped(game, "<information>nothing</information>")


ALL: dict[str, type[EnvServer]] = {
    "textcraft": TextCraft,
    "babyai": BabyAI,
    "alfworld": AlfWorld,
    "sciworld": SciWorld,
    "maze": Maze,
    "wordle": Wordle,
    "webshop": WebShop,
    "sqlgym": SqlGym,
    "weather": Weather,
    "searchqa": SearchQA,
}
