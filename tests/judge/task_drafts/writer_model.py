"""A chat endpoint that writes tasks, attempts them with the tools that it is given, and judges the attempts."""

import itertools
import json
import re
from typing import Any

import pytest

from tests.endpoint import Endpoint, Request, says
from tests.fake_server import Answer

GOALS = (
    "Sum up the sales of spring", "Find who ordered a kettle", "List all open invoices", "Move the meeting to Friday",
    "Translate the welcome letter", "Count chairs in the store", "Book a train to Oslo", "Cancel the gym membership",
    "Compare two laptops", "Rename the holiday photos", "Draft a reply to the landlord", "Archive old tickets",
    "Water plants by schedule", "Check the weather in Rome", "Plan dinner for vegans", "Repair broken links",
)  # fmt: skip
SYLLABLES = ("ba", "ke", "di", "mo", "su", "ra", "fi", "lo")
CRITERIA = [{"name": "goal", "text": "The goal was reached.", "weight": 2}]
USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}


class WriterModel:
    """`write`, `play` and `judge` may be replaced. An attempt calls `tool`; all are solved."""

    def __init__(self, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_BASE", f"{endpoint.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        self.requests = endpoint.requests
        self.tool: str | None = "add"
        self._goals = itertools.chain(GOALS, map("".join, itertools.product(SYLLABLES, repeat=4)))
        self.written: list[str] = []
        endpoint.script = [self.answer]

    def answer(self, request: Request) -> Answer:
        if request.get("tools"):
            return self.play(request)
        is_verdict = any("Was the task solved?" in (message["content"] or "") for message in request["messages"])
        return self.judge(request) if is_verdict else self.write(request)

    def write(self, request: Request) -> Answer:
        found = re.search(r"Write (\d+) tasks", request["messages"][0]["content"])
        assert found
        tasks = [
            {"task": next(self._goals), "difficulty": number % 5 + 1, "criteria": CRITERIA}
            for number in range(int(found[1]))
        ]
        self.written += [task["task"] for task in tasks]
        return says(json.dumps({"scenarios": tasks}), USAGE)

    def play(self, request: Request) -> Answer:
        if self.tool is None or request["messages"][-1]["role"] == "tool":
            return says("Done.", USAGE)
        function: dict[str, Any] = {"name": self.tool, "arguments": '{"amount": 1}'}
        return says(None, USAGE, tool_calls=[{"id": "1", "type": "function", "function": function}])

    def judge(self, request: Request) -> Answer:
        return says(json.dumps({"reason": "as the transcript shows", "solved": True}), USAGE)
