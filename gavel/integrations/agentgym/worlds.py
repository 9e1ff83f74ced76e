"""One episode in an AgentGym environment: the agent writes `Thought: … Action: get 1 oak log`, and the action is sent.

A server that is lost fails the episode with the reason. The agent is shown an error about an action; the third in a row
fails the episode. `success` and `reward` are the environment's, for comparison only. Replies are data: nothing in them
is ever evaluated.
"""

import re
from typing import Any

from gavel.integrations.agentgym.client import EnvServer, Session
from gavel.integrations.agentgym.protocol import AgentGymError, Form, RefusedError, texts
from gavel.prompts import render
from gavel.scenarios.episode import Episode
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory

_ACTION = re.compile(r"^[^\S\n]*\**Action\**[^\S\n]*:\**[^\S\n]*", re.IGNORECASE | re.MULTILINE)
_INLINE = re.compile(r"\bAction:[^\S\n]*")
"""An action after a thought on the same line."""
_SQL = re.compile(r"```(?:sql)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^```[\w-]*\n(.*?)\n?```$", re.DOTALL)
_NEXT = re.compile(r"^\s*(?:Thought|Observation)\s*:", re.IGNORECASE | re.MULTILINE)
_END = "</s>"


def action_of(reply: str, form: Form) -> str | None:
    """Extracts the action to send; None for a reply without an action, or with several.

    Text after the action that imitates the environment (`Observation: …`) is removed.
    """
    said = reply.strip().removesuffix(_END).strip()
    if form == "reply":
        return said or None
    marks = list(_ACTION.finditer(said)) or list(_INLINE.finditer(said))
    if form == "sql":
        fences = _SQL.findall(said[marks[-1].end() :] if marks else said)
        return (fences[-1].strip() or None) if fences else _after(said, marks)
    action = _after(said, marks)
    if form == "call" and action is not None:
        return f"Action: {action}"
    return action


def _after(said: str, marks: list[re.Match[str]]) -> str | None:
    if len(marks) != 1:
        return None
    action = said[marks[0].end() :]
    if (further := _NEXT.search(action)) is not None:
        action = action[: further.start()]
    action = action.strip()
    fenced = _FENCE.match(action)
    return (fenced[1].strip() if fenced else action) or None


RAW, RETURN, ERRORS = "raw_reward", "raw_return", "environment_errors"
"""Trajectory metrics: the server's last reward, the sum over the steps, and the environment's errors about actions."""
_ERRORS_IN_A_ROW = 3


class ReactWorld:
    """An episode of one item."""

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
        first = self._session.first
        if self._kind.words is not None:
            words = texts(await self._server.look(self._session, f"/{self._kind.words}"))
            first = f"{first}\n\nAllowed words: {', '.join(words)}"
        return first

    def success(self, trajectory: Trajectory) -> bool:
        return self._kind.succeeded(self._raw, self._is_done)

    def reward(self, trajectory: Trajectory) -> float:
        return self._kind.normalised(self._raw, self._is_done)

    async def close(self) -> None:
        if self._session is not None:
            await self._server.end(self._session, whole=not self._asking)

    async def _act(self, action: str) -> tuple[str, bool]:
        """The environment's answer, and whether the episode is over. Raises `AgentGymError`."""
        assert self._session is not None
        self._asking = True  # until the response arrives: after a failure the environment is not reused
        try:
            step = await self._server.step(self._session, action)
        except RefusedError as error:
            self._errors, self._in_a_row = self._errors + 1, self._in_a_row + 1
            self._metrics[ERRORS] = self._errors
            if self._in_a_row == _ERRORS_IN_A_ROW:
                raise AgentGymError(
                    f"the environment answered {self._in_a_row} actions in a row with an error: {error.message}",
                    "Look at the server's log.",
                ) from error
            self._asking = False
            return f"Error: {error.message}", False
        self._asking = False
        self._in_a_row = 0
        self._sum += step.reward
        self._raw = step.reward if step.score is None or not self._kind.scored else step.score
        self._is_done = step.done
        self._metrics |= {RAW: self._raw, RETURN: self._sum}
        return step.observation, step.done

    async def observe(self, action: str) -> Any:
        found = action_of(action, self._kind.form)
        if found is None:
            return render("scenarios/agentgym_form.j2", form=self._kind.form).strip()
        observation, is_over = await self._act(found)
        return done(observation or None) if is_over else observation
