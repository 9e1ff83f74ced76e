"""A server that speaks as openenv 0.10 does, and misbehaves where it is told to.

Its environment is a number to be guessed from 1 to 9; the seed chooses it. `fault` names what goes wrong.
"""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

from aiohttp import WSMsgType, web

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from tests.scenarios.scripts import turn

ACTION = {
    "title": "Guess",
    "description": "Guess the number.",
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "number": {"type": "integer"}},
    "required": ["number"],
}


def observation(hint: str, reward: float | None = None, done: bool = False) -> dict[str, Any]:
    return {"observation": {"hint": hint, "metadata": {}}, "reward": reward, "done": done}


def error(message: str, code: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


SENT = {
    "no json": "<html>",
    "other type": '{"type": "state", "data": {}}',
    "not a number": '{"type": "observation", "data": {"observation": {"hint": "x"}, "reward": NaN}}',
    "no observation": '{"type": "observation", "data": {"reward": 1.0, "done": true}}',
    "huge": json.dumps({"type": "observation", "data": observation("x" * 300_000, True, True)}),
    "always fails": json.dumps(error("division by zero", "EXECUTION_ERROR")),
}
"""What stands in place of a step's answer, by the fault."""


class StandIn:
    def __init__(
        self, fault: str = "", *, sessions: int = 8, action: dict[str, Any] = ACTION, splits: bool = False
    ) -> None:
        self.fault = fault
        self.most = sessions
        self.action = action
        self.splits = splits
        self.open = self.peak = self.closed = self.refused = 0
        self.resets: list[dict[str, Any]] = []
        self.goal = 0

    def app(self) -> web.Application:
        app = web.Application()
        answers: dict[str, Callable[[Any], Any]] = {
            "/schema": lambda given: {"action": self.action, "observation": {}, "state": {}},
            "/metadata": lambda given: {"name": "guess", "description": "Find the number."},
        }
        if self.splits:
            answers |= {
                "/list_environments": lambda given: ["guess"],
                "/guess/splits": lambda given: [{"name": "train", "type": "train"}, {"name": "hard", "type": "test"}],
                "/guess/num_tasks": lambda given: {"num_tasks": {"train": 30, "hard": 4}[given["split"]]},
                "/guess/task_range": lambda given: {
                    "tasks": [{"id": f"{given['split']}-{i}"} for i in range(given["start"], given["stop"])]
                },
            }

        async def answer(request: web.Request) -> web.Response:
            given = json.loads(await request.text() or "null")
            return web.json_response(answers[request.path](given))

        for path in answers:
            app.router.add_route("POST" if "task" in path else "GET", path, answer)
        app.router.add_get("/ws", self._ws)
        return app

    def reset(self, data: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.resets.append(data)
        seed = data.get("seed", data.get("index"))
        return random.Random(seed).randint(1, 9), observation("Guess a number from 1 to 9.")

    def step(self, goal: int, action: dict[str, Any]) -> dict[str, Any]:
        guess = action.get("number")
        if not isinstance(guess, int):
            problem = [{"loc": ["number"], "msg": "Input should be a valid integer", "type": "int_parsing"}]
            return error("Invalid message", "VALIDATION_ERROR", errors=problem)
        if guess == 99:
            return error("division by zero", "EXECUTION_ERROR")
        if guess == goal:
            return {"type": "observation", "data": observation("right", 1.0, True)}
        hint = "higher" if guess < goal else "lower"
        return {"type": "observation", "data": observation(hint, -0.1)}

    async def _ws(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.open >= self.most:
            self.refused += 1
            counts = {"active_sessions": self.open, "max_sessions": self.most}
            await socket.send_json(error("Server at capacity", "CAPACITY_REACHED", **counts))
            await socket.close()
            return socket
        self.open += 1
        self.peak = max(self.peak, self.open)
        goal = 0
        try:
            async for frame in socket:
                if frame.type is not WSMsgType.TEXT:
                    break
                message = json.loads(frame.data)
                kind = message["type"]
                if kind == "close":
                    self.closed += 1
                    break
                if kind == "reset":
                    goal, answer = self.reset(message["data"])
                    if self.fault == "reset fails":
                        await socket.send_json(error("no disk", "EXECUTION_ERROR"))
                        continue
                    await socket.send_json({"type": "observation", "data": answer})
                elif self.fault == "dies":
                    assert request.transport is not None
                    request.transport.abort()
                    break
                elif self.fault == "closes":
                    await socket.close(code=1011, message=b"out of memory")
                    break
                elif self.fault == "silent":
                    await asyncio.sleep(60)
                elif self.fault:
                    await socket.send_str(SENT[self.fault])
                else:
                    await asyncio.sleep(0)
                    await socket.send_json(self.step(goal, message["data"]))
        finally:
            self.open -= 1
        return socket


async def _halve(request: ChatRequest) -> Message:
    low, high, guess = 1, 9, 5
    for message in request.messages:
        if message["role"] == "assistant":
            guess = json.loads(message["tool_calls"][0]["function"]["arguments"])["number"]
        elif "higher" in message["content"]:
            low = guess + 1
        elif "lower" in message["content"]:
            high = guess - 1
    guess = (low + high) // 2
    turns = sum(message["role"] == "assistant" for message in request.messages)
    return turn(("act", {"number": guess}), turns)


HALVER = FunctionModel("halver", _halve)
"""Finds the number of the stand-in's environment."""
