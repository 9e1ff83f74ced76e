"""AgentGym's environment servers on loopback: the wire of each published one, around one small world.

The world is the same for all: say the item's number to win. What differs is what the published servers differ in:
how an environment and an item are named, where the observation stands, what rewards mean, how errors are told.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tests.integrations.served import in_a_thread


@dataclass
class Game:
    """One environment of a server."""

    item: int | None = None
    done: bool = False
    score: float = 0.0
    steps: int = 0
    answers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wire:
    """How a server speaks."""

    greeting: Any = "ok"
    prefix: str = ""
    field: str = "id"
    """What requests call an environment."""
    index: str = "data_idx"
    """What they call the item."""
    more: tuple[str, ...] = ()
    """Further required fields of /reset."""
    wants_body: bool = False
    """Whether /create needs one."""
    first_id: int = 0
    tells_errors: bool = True
    """Whether every error is `{"error": …}` with status 200; else they have a status."""
    routes: tuple[str, ...] = ("observation",)
    """Those beside /create, /reset and /step."""
    most: int | None = None
    """Environments that it holds, and gives away again."""
    form: tuple[str, str] = ("", "")
    """What stands around an action."""
    created: Callable[[int], Any] = lambda number: {"id": number}
    begun: Callable[[str], Any] = lambda text: {"observation": text, "done": False, "reward": 0}
    stepped: Callable[[Game, str], Any] = lambda game, text: {
        "observation": text,
        "reward": float(game.done),
        "done": game.done,
    }


def missing(*names: str) -> web.HTTPException:
    detail = [{"loc": ["body", name], "msg": "Field required"} for name in names]
    return web.HTTPUnprocessableEntity(text=json.dumps({"detail": detail}), content_type="application/json")


class EnvServer:
    """A server in a thread of its own. `calls` is every request: (path, body)."""

    def __init__(self, kind: str) -> None:
        self.wire = WIRES[kind]
        self.calls: list[tuple[str, Any]] = []
        self.games: dict[int, Game] = {}
        self.delay = 0.0
        self.fail: Callable[[str], web.Response | None] = lambda path: None
        self.port = 0

    def __enter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/", self._handle)
        for path in ("create", "reset", "step", *self.wire.routes):
            method = "GET" if path in ("observation", "filtered_vocab") else "POST"
            app.router.add_route(method, f"{self.wire.prefix}/{path}", self._handle)
        self._running = contextlib.ExitStack()
        url = self._running.enter_context(in_a_thread(app, self.port))
        self.port = int(url.rpartition(":")[2])
        return self

    def stop(self, *_: object) -> None:
        self._running.close()

    __exit__ = stop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.wire.prefix}"

    def count(self, path: str) -> int:
        return sum(each == path for each, _ in self.calls)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix(self.wire.prefix)
        if request.path == "/":
            return web.json_response(self.wire.greeting)
        text = await request.text()
        body = json.loads(text) if text else dict(request.query) or None
        self.calls.append((path, body))
        if self.delay:
            await asyncio.sleep(self.delay)
        if (failed := self.fail(path)) is not None:
            return failed
        try:
            return web.json_response(getattr(self, path[1:])(body))
        except web.HTTPException:
            raise
        except Exception as error:
            if self.wire.tells_errors:
                return web.json_response({"error": str(error)})
            return web.Response(text="Internal Server Error", status=500)

    def game(self, body: Any) -> Game:
        number = int(body[self.wire.field])
        if number not in self.games:
            raise ValueError(f"The id {number} is not valid.")
        return self.games[number]

    def create(self, body: Any) -> Any:
        if self.wire.wants_body and body is None:
            raise missing("body")
        number = self.wire.first_id + len(self.games)
        if self.wire.most is not None and len(self.games) >= self.wire.most:
            number = self.wire.first_id + self.count("/create") % self.wire.most
        self.games.setdefault(number, Game())
        return self.wire.created(number)

    def reset(self, body: Any) -> Any:
        wire = self.wire
        if lacking := [name for name in (wire.field, wire.index, *wire.more) if name not in body]:
            raise missing(*lacking)
        game = self.game(body)
        if body[wire.index] >= 1000:
            raise IndexError("list index out of range")
        game.item, game.done, game.score, game.steps = body[wire.index], False, 0.0, 0
        return wire.begun(f"The number is {game.item}.")

    def step(self, body: Any) -> Any:
        game, action, (before, after) = self.game(body), body["action"], self.wire.form
        if game.done:
            raise ValueError(f"The task with environment {body[self.wire.field]} has finished.")
        if not action.startswith(before) or after not in action:
            return {"observation": "Format error", "reward": 0.0, "done": False}
        action = action.removeprefix(before).partition(after)[0] if after else action
        game.steps += 1
        game.answers.append(action)
        if action == "crash":
            raise ValueError("the action made the environment stumble")
        game.done = action == f"say {game.item}"
        return self.wire.stepped(game, "You win." if game.done else f"You said: {action}")

    def observation(self, body: Any) -> Any:
        return f"The number is {self.game(body).item}."

    def filtered_vocab(self, body: Any) -> Any:
        return ["c r a n e", "s h i r e"]

    def close(self, body: Any) -> Any:
        self.game(body)
        del self.games[body[self.wire.field]]
        return True


def babyai(game: Game, text: str) -> Any:
    """Rewards 1 less a share of the steps."""
    reward = 1 - 0.9 * game.steps / 50 if game.done else 0
    game.score += reward
    return {"observation": text, "reward": reward, "score": game.score, "done": game.done}


def sciworld(game: Game, text: str) -> Any:
    """Scores from -100 to 100."""
    before, is_wrong = game.score, game.answers[-1] == "focus on wrong"
    game.score = 100 if game.done else -100 if is_wrong else min(75, game.score + 25)
    game.done = game.done or is_wrong
    return {"observation": text, "reward": game.score - before, "score": game.score, "done": game.done}


def alfworld(game: Game, text: str) -> Any:
    return {"observation": text, "reward": float(game.done), "done": game.done, "available_actions": ["look"]}


def webshop(game: Game, text: str) -> Any:
    """Rewards may be parts of 1."""
    reward = 1.0 if game.done else 0.5 if game.answers[-1] == "click[Buy Now]" else 0.0
    game.done = game.done or reward > 0
    return {"state": text, "reward": reward, "done": game.done, "info": None}


def sqlgym(game: Game, text: str) -> Any:
    return {"state": text, "reward": float(game.done), "done": game.done, "info": {}}


def told(**more: Any) -> Callable[[str], Any]:
    return lambda text: {"observation": text, "reward": 0, "score": 0, "deleted": False, "done": False, **more}


B: dict[str, Any] = {"field": "env_idx", "index": "id", "first_id": 7, "tells_errors": False}
"""Dialect B: environments are called `env_idx` and are bare numbers; errors have a status."""
B |= {"created": lambda number: number, "begun": lambda text: text}
PAIR: dict[str, Any] = {**B, "begun": lambda text: [text, None]}
WIRES: dict[str, Wire] = {
    "textcraft": Wire("This is environment TextCraft.", wants_body=True, routes=("observation", "close")),
    "babyai": Wire("This is environment BabyAI.", routes=(), begun=told(), stepped=babyai),
    "alfworld": Wire(
        "This is environment AlfWorld.",
        index="game",
        more=("world_type",),
        begun=lambda text: {"observation": text, "available_actions": ["look", "say 3"], "task_type": "pick/7"},
        stepped=alfworld,
    ),
    "sciworld": Wire(
        "This is environment ScienceWorld.",
        begun=told(task_name="boil", task_description="Your task is to count."),
        stepped=sciworld,
    ),
    "maze": Wire("This is environment LMRL-Gym.", "/maze", index="game", begun=lambda text: {"observation": text}),
    "wordle": Wire(
        "This is environment LMRL-Gym.",
        "/wordle",
        index="seed",
        routes=("observation", "filtered_vocab"),
        begun=lambda text: {"observation": "Let's start Wordle!"},
    ),
    "webshop": Wire(**{**PAIR, "index": "session_id", "routes": ("observation", "close")}, stepped=webshop),
    "sqlgym": Wire(**{**PAIR, "index": "item_id"}, most=8, stepped=sqlgym),
    "weather": Wire(**B, wants_body=True, form=("Action: ", " with Action Input: ")),
    "searchqa": Wire(**B, wants_body=True, form=("<answer>", "</answer>")),
}
