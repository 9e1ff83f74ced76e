"""Clients as AgentGym's own are: requests, one for each call, asserts, and the fields that each of theirs reads."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import requests


@dataclass
class StepOutput:
    state: str
    reward: float
    done: bool


class EnvClient:
    """What theirs have in common. `index` is what a reset calls the item."""

    index = "data_idx"
    create_body: ClassVar[Any] = None
    more: ClassVar[dict[str, Any]] = {}

    def __init__(self, env_server_base: str, timeout: int = 300) -> None:
        self.base, self.timeout = env_server_base, timeout
        body = {} if self.create_body is None else {"json": self.create_body}
        created = requests.post(f"{self.base}/create", timeout=timeout, **body)
        if created.status_code != 200:
            raise requests.RequestException(f"Failed to create environment: {created}")
        self.created = created.json()
        self.env_id = self.created["id"]
        self.info: dict[str, Any] = {}

    def post(self, path: str, data: dict[str, Any]) -> Any:
        answer = requests.post(f"{self.base}/{path}", json={**data, "id": self.env_id}, timeout=self.timeout)
        assert answer.status_code == 200
        return answer.json()

    def observe(self) -> str:
        return self.info["observation"]

    def reset(self, item: int) -> Any:
        answer = self.post("reset", {self.index: item, **self.more})
        self.info = self.first(answer)
        return answer

    def first(self, answer: Any) -> dict[str, Any]:
        return {"observation": answer["observation"]}

    def action(self, text: str) -> str:
        parts = text.removesuffix("</s>").split("Action:")
        return (parts[1] if len(parts) > 1 else parts[0]).strip()

    def step(self, text: str) -> StepOutput:
        answer = self.post("step", {"action": self.action(text)})
        self.info = {"observation": answer["observation"]}
        return StepOutput(answer["observation"], self.reward(answer), answer["done"])

    def reward(self, answer: Any) -> float:
        return answer["reward"]

    def close(self) -> Any:
        return self.post("close", {})


class TextCraft(EnvClient):
    """Takes all but letters, digits and commas out of an action."""

    create_body: ClassVar[Any] = {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None}

    def __init__(self, env_server_base: str) -> None:
        super().__init__(env_server_base)
        self.info = {"observation": self.created["observation"]}

    def action(self, text: str) -> str:
        found = re.findall(r"Action:\s*(.*?)(?=\n|$)", text, re.DOTALL)
        return " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", found[-1] if found else "").split())


class SciWorld(EnvClient):
    """Reads `score`, and puts the task's description before the first observation."""

    def first(self, answer: Any) -> dict[str, Any]:
        return {"observation": answer["task_description"] + "\n" + answer["observation"]}

    def reward(self, answer: Any) -> float:
        return answer["score"]


class BabyAI(EnvClient):
    """Reads reward, score and done of a reset."""

    def first(self, answer: Any) -> dict[str, Any]:
        return {name: answer[name] for name in ("observation", "reward", "score", "done")}

    def reward(self, answer: Any) -> float:
        return answer["score"]


class AlfWorld(EnvClient):
    """Names the item `game`, and reads the available actions."""

    index = "game"
    more: ClassVar[dict[str, Any]] = {"world_type": "Text"}

    def first(self, answer: Any) -> dict[str, Any]:
        return {"observation": f"{answer['observation']}\nAVAILABLE ACTIONS: {','.join(answer['available_actions'])}"}


class Maze(EnvClient):
    """Names the item `game`."""

    index = "game"


ALL = (TextCraft, SciWorld, BabyAI, AlfWorld, Maze)
