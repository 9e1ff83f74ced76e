"""Environments behind AgentGym's HTTP protocol, as scenarios.

    gavel train agentgym:http://127.0.0.1:36001?tasks=200&held_out=50 --model Qwen/Qwen3-4B --judge openai/gpt-5-mini
    scenario = agentgym("webshop+http://127.0.0.1:36003?turns=15")

The server's kind is detected when the scenario is created; episodes create its environments. The agent writes
`Thought: … Action: get 1 oak log`, and the action is sent. A server that is lost fails the episode with the reason. The
agent is shown an error about an action; the third in a row fails the episode. `success` and `reward` are the
environment's, for comparison only. Replies are data: nothing in them is ever evaluated.
"""

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

from gavel.base.network import is_on_this_machine
from gavel.integrations.agentgym.client import EnvServer, Session
from gavel.integrations.agentgym.protocol import (
    KINDS,
    AgentGymError,
    Form,
    Kind,
    RefusedError,
    kind_of,
    parse,
    texts,
)
from gavel.prompts import render
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

_ERRORS_IN_A_ROW = 3
KEY_VARIABLE = "GAVEL_ENV_KEY"
"""Environment variable with the key of a server that requires one."""
_WAIT = 600.0
"""Max seconds to wait for an environment of a server with limited capacity."""


def agentgym(address: str) -> Scenario:
    """The scenario of an environment server. `address`: the part after `agentgym:`, see `parse`.

    Raises `ScenarioError` for an invalid address, and for a server that does not answer.
    """
    url, named, options = parse(address)
    key = os.environ.get(KEY_VARIABLE, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    found = _probe(url, headers)
    kind = KINDS[named] if named is not None else found
    server = EnvServer(url, kind, headers, seconds=options.timeout, wait_seconds=_WAIT)
    splits = options.splits(kind.train, kind.held_out)
    tasks, held_out = (
        [Task(id=f"{kind.name}-{item}", user="", data={"item": item}) for item in items] for items in splits
    )
    return Scenario(
        f"agentgym_{kind.name}",
        system=render("scenarios/agentgym_system.j2", environment=kind.name, form=kind.form).strip(),
        environment=partial(ReactWorld, server),
        tasks=tasks,
        held_out=held_out,
        max_turns=options.turns,
        call_seconds=_WAIT + 4 * options.timeout,
        rubric=kind.rubric or render("scenarios/agentgym_rubric.j2").strip(),
    )


scenario_at = agentgym
"""The name by which `agentgym:ADDRESS` is found."""


def _probe(url: str, headers: Mapping[str, str]) -> Kind:
    """Detects the kind of a server. Raises `ScenarioError` if it does not answer, or requires another key."""
    trust = not is_on_this_machine(url)
    try:
        answer = httpx.get(f"{url}/", timeout=15, headers=headers, trust_env=trust, follow_redirects=True)
    except httpx.HTTPError as error:
        raise ScenarioError(
            f"the AgentGym server at {url} does not answer: {type(error).__name__} {error}".rstrip(),
            "Start it (textcraft --port 36001, or gavel serve-env SCENARIO), or mend the address.",
        ) from error
    if answer.status_code in (401, 403):
        raise ScenarioError(f"the server at {url} wants another key.", "Set GAVEL_ENV_KEY to the server's key.")
    try:
        greeting: Any = answer.json() if answer.status_code == 200 else None
    except (ValueError, RecursionError):
        greeting = None
    match greeting:
        case {"gavel": str(name), "train": int(train), "held_out": int(held_out), **more}:
            items, rubric = (range(train), range(train, train + held_out)), more.get("rubric")
            return Kind(name, ("data_idx",), *items, form="reply", rubric=rubric and str(rubric))
        case _:
            return kind_of(urlsplit(url).path, greeting)


_ACTION = re.compile(r"^[^\S\n]*\**Action\**[^\S\n]*:\**[^\S\n]*", re.IGNORECASE | re.MULTILINE)
_INLINE = re.compile(r"\bAction:[^\S\n]*")
"""An action after a thought on the same line."""
_SQL = re.compile(r"```(?:sql)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^```[\w-]*\n(.*?)\n?```$", re.DOTALL)
_NEXT = re.compile(r"^\s*(?:Thought|Observation)\s*:", re.IGNORECASE | re.MULTILINE)


def action_of(reply: str, form: Form) -> str | None:
    """Extracts the action to send; None for a reply without an action, or with several.

    Text after the action that imitates the environment (`Observation: …`) is removed.
    """
    said = reply.strip().removesuffix("</s>").strip()
    if form == "reply":
        return said or None
    marks = list(_ACTION.finditer(said)) or list(_INLINE.finditer(said))
    if form == "sql" and (fences := _SQL.findall(said[marks[-1].end() :] if marks else said)):
        return fences[-1].strip() or None
    if len(marks) != 1:
        return None
    action = _NEXT.split(said[marks[0].end() :], maxsplit=1)[0].strip()
    fenced = _FENCE.match(action)
    action = fenced[1].strip() if fenced else action
    return (f"Action: {action}" if form == "call" else action) if action else None


class ReactWorld:
    """An episode of one item. `raw_reward` is the server's last reward, `raw_return` the sum over the steps."""

    def __init__(self, server: EnvServer) -> None:
        self._server = server
        self._kind = server.kind
        self._session: Session | None = None
        self._asking = self._is_done = False
        self._raw = self._sum = 0.0
        self._errors = self._in_a_row = 0

    async def reset(self, task: Task, episode: Episode) -> str:
        self._metrics = episode.trajectory.metrics
        self._session = await self._server.begin(task.data["item"])
        if self._kind.words is None:
            return self._session.first
        words = texts(await self._server.look(self._session, f"/{self._kind.words}"))
        return f"{self._session.first}\n\nAllowed words: {', '.join(words)}"

    def success(self, trajectory: Trajectory) -> bool:
        return self.reward(trajectory) >= 1.0

    def reward(self, trajectory: Trajectory) -> float:
        return self._kind.normalised(self._raw, self._is_done)

    async def close(self) -> None:
        if self._session is not None:
            await self._server.end(self._session, whole=not self._asking)

    async def observe(self, action: str) -> Any:
        found = action_of(action, self._kind.form)
        if found is None:
            return render("scenarios/agentgym_form.j2", form=self._kind.form).strip()
        assert self._session is not None
        self._asking = True  # until the response arrives: after a failure the environment is not reused
        try:
            step = await self._server.step(self._session, found)
        except RefusedError as error:
            self._errors, self._in_a_row = self._errors + 1, self._in_a_row + 1
            self._metrics["environment_errors"] = self._errors
            if self._in_a_row == _ERRORS_IN_A_ROW:
                raise AgentGymError(
                    f"the environment answered {self._in_a_row} actions in a row with an error: {error.message}",
                    "Look at the server's log.",
                ) from error
            self._asking = False
            return f"Error: {error.message}"
        self._asking, self._in_a_row, self._is_done = False, 0, step.done
        self._sum += step.reward
        self._raw = step.reward if step.score is None or not self._kind.scored else step.score
        self._metrics |= {"raw_reward": self._raw, "raw_return": self._sum}
        return done(step.observation or None) if step.done else step.observation
