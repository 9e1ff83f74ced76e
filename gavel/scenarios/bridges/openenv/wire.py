"""What OpenEnv servers answer, checked: a reward is a finite number or none, an observation an object.

{"type": "observation", "data": {"observation": {…}, "reward": 1.0, "done": false}}
{"type": "error", "data": {"message": "…", "code": "EXECUTION_ERROR"}}
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gavel.base.errors import GavelError
from gavel.llm.types import Message
from gavel.scenarios.tool_results import text_of_result

MOST_CHARACTERS = 200_000
"""Of an observation that an agent is shown."""
_OUTER = ("done", "reward", "metadata")


class OpenEnvError(GavelError):
    """A server of OpenEnv cannot be reached, is lost, or does not speak the protocol."""


class RefusedError(OpenEnvError):
    """The server answered with an error, and the session goes on."""

    def __init__(self, message: str, *, is_agents: bool = False) -> None:
        super().__init__(message)
        self.is_agents = is_agents
        """Whether the action is to blame: it is none by the server's schema."""


class CapacityError(OpenEnvError):
    """The server has no free session."""

    def __init__(self, message: str, sessions: int | None) -> None:
        super().__init__(message, "Start the server with more sessions (max_concurrent_envs).")
        self.sessions = sessions
        """That it holds, if it says so."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """An observation of a server."""

    observation: Message
    reward: float | None = None
    done: bool = False
    metadata: Message = field(default_factory=dict[str, Any])


_AGENTS = ("VALIDATION_ERROR", "HTTP 400", "HTTP 422")
"""Codes of errors about an action that is none."""
_LASTING = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Codes of errors after which the server closes the connection."""


def checked(message: Any, wanted: str) -> Message:
    """The data of a message of the type that was wanted.

    Raises `CapacityError`, `RefusedError` for an error that leaves the session, `OpenEnvError` for anything else.
    """
    given = _object(message) or {}
    kind, data = given.get("type"), _object(given.get("data"))
    if kind == "error" and data is not None:
        raise _error(data)
    if kind != wanted or data is None:
        raise OpenEnvError(f"the server answered with no {wanted}: {_excerpt(message)}")
    return data


def stepped(data: Any) -> Stepped:
    """What `reset` and `step` answer. Raises `OpenEnvError` for what is none."""
    given = _object(data) or {}
    observed = given.get("observation")
    seen = {"text": observed} if isinstance(observed, str) else _object(observed)
    if seen is None:
        raise OpenEnvError(f"the server's answer has no observation: {_excerpt(data)}")
    reward = given.get("reward", seen.get("reward"))
    if not isinstance(reward, int | float | None) or (reward is not None and not math.isfinite(reward)):
        raise OpenEnvError(f"the server's reward is no finite number: {reward!r}")
    done = given.get("done", seen.get("done", False))
    if not isinstance(done, bool | None):
        raise OpenEnvError(f"the server's done is neither true nor false: {done!r:.100}")
    metadata = _object(given.get("metadata") or seen.get("metadata"))
    return Stepped(
        {name: value for name, value in seen.items() if name not in _OUTER},
        None if reward is None else float(reward),
        bool(done),
        metadata or {},
    )


def text_of(observation: Message, fields: Sequence[str] | None = None) -> str:
    """What an agent reads: the one field that says something where that is a text, else all of them as JSON.

    `fields`: those that are shown.
    """
    shown = {name: observation[name] for name in fields if name in observation} if fields is not None else observation
    shown = {name: value for name, value in shown.items() if value not in (None, "", [], {})}
    match list(shown.values()):
        case []:
            return ""
        case [str(text)]:
            return bounded(text_of_result(text))
        case _:
            return bounded(text_of_result(shown))


def tool_text(result: Any) -> tuple[str, bool]:
    """What an agent reads of an MCP tool's result, and whether the tool failed."""
    given = _object(result) or {}
    blocks: Any = given.get("content")
    if not isinstance(blocks, list):
        return bounded(text_of_result(result)), False
    texts = [_block(block) for block in cast("list[Any]", blocks)]
    return bounded("\n".join(texts)), bool(given.get("is_error") or given.get("isError"))


def bounded(text: str) -> str:
    more = len(text) - MOST_CHARACTERS
    return text if more <= 0 else f"{text[:MOST_CHARACTERS]}\n[{more:,} more characters]"


def _block(block: Any) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text_of_result(text)
        case {"type": "image" | "audio" as kind}:
            return f"[{kind}, not shown]"
        case _:
            return text_of_result(block)


def _error(data: Message) -> OpenEnvError:
    code, message = str(data.get("code", "")), str(data.get("message") or "no reason is given")
    if code == "CAPACITY_REACHED":
        sessions = data.get("max_sessions")
        return CapacityError(message, sessions if isinstance(sessions, int) and sessions > 0 else None)
    problems: Any = data.get("errors")
    if isinstance(problems, list):
        message = "; ".join(_problem(each) for each in cast("list[Any]", problems)[:5]) or message
    told = f"the server answered {code or 'with an error'}: {message[:500]}"
    return OpenEnvError(told) if code in _LASTING else RefusedError(told, is_agents=code in _AGENTS)


def _problem(error: Any) -> str:
    given = _object(error) or {}
    where, text = given.get("loc"), given.get("msg")
    if not isinstance(where, list) or not isinstance(text, str):
        return _excerpt(error)
    return f"{'.'.join(map(str, cast('list[Any]', where))) or 'action'}: {text}"


def _object(value: Any) -> Message | None:
    return cast(Message, value) if isinstance(value, dict) else None


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
