"""Clients as AgentGym's own are: what each sends, and the fields that it reads of an answer."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import requests


@dataclass
class StepOutput:
    state: str
    reward: float
    done: bool


def bare(text: str) -> str:
    """Of TextCraft and BabyAI: the action without its punctuation."""
    found = re.findall(r"Action:\s*(.*?)(?=\n|$)", text, re.DOTALL)
    return " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", found[-1] if found else "").split())


def after_the_mark(text: str) -> str:
    parts = text.removesuffix("</s>").split("Action:")
    return (parts[1] if len(parts) > 1 else parts[0]).strip()


def fenced(text: str) -> str:
    """WebArena's agents write the action between backticks."""
    head, mark, action = text.partition("Action: ")
    return f"{head}{mark}```{action}```"


@dataclass
class Client:
    """`field`: what requests call the environment; `name`: where /create's answer names it; None: by all of it."""

    base: str
    field: str = "id"
    name: str | None = "id"
    index: str = "data_idx"
    create: Any = None
    more: dict[str, Any] | None = None
    action: Any = after_the_mark
    state: str = "observation"
    reward: str = "reward"
    done: str = "done"
    opening: str | None = "observation"
    reads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        body = {} if self.create is None else {"json": self.create}
        created = requests.post(f"{self.base}/create", timeout=60, **body).json()
        self.env = created if self.name is None else created[self.name]
        self.strips = self.action is bare

    def post(self, path: str, data: dict[str, Any]) -> Any:
        answer = requests.post(f"{self.base}/{path}", json={**data, self.field: self.env}, timeout=60)
        assert answer.status_code == 200
        return answer.json()

    def reset(self, item: int) -> None:
        answer = self.post("reset", {**(self.more or {}), self.index: item})
        self.seen = None if self.opening is None else answer[self.opening]
        assert all(name in answer for name in self.reads)

    def observe(self) -> str:
        if self.seen is not None:
            return self.seen
        answer = requests.get(f"{self.base}/observation?{self.field}={self.env}", timeout=60)
        assert answer.status_code == 200
        return answer.json()

    def step(self, text: str) -> StepOutput:
        answer = self.post("step", {"action": self.action(text)})
        assert all(name in answer for name in self.reads)
        return StepOutput(answer[self.state], answer[self.reward], answer[self.done])

    def close(self) -> Any:
        return self.post("close", {})


by_index = partial(Client, field="env_idx", name=None, opening=None)
"""Of the clients that keep all that /create answered as the environment's name, and ask for the observation."""
ALL: dict[str, Any] = {
    "textcraft": partial(Client, create={"minecraft_dir": "x/", "commands": None, "goal": None}, action=bare),
    "babyai": partial(Client, action=bare, reward="score", reads=("reward", "score", "done")),
    "alfworld": partial(Client, index="game", more={"world_type": "Text"}, reads=("available_actions",)),
    "sciworld": partial(Client, reward="score"),
    "maze": partial(Client, index="game"),
    "webshop": partial(by_index, index="session_id", state="state"),
    "sqlgym": partial(by_index, index="item_id", state="state", action=str),
    "weather": partial(by_index, index="id", create={"id": 0}, action=str),
    "webarena": partial(
        Client,
        field="env_idx",
        name="env_idx",
        index="idx",
        more={"seed": 0},
        opening=None,
        action=fenced,
        done="terminated",
    ),
}
"""movie, academia, sheet, todo and searchqa are as weather."""
