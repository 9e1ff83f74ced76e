"""The scenario of an address: what the server tells of its actions and tasks, asked once.

Tasks are those that the server lists (splits `train` and `test`), or seeds. Seeds that are trained on are never held
out.
"""

import functools
import json
import re
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from gavel.base.network import is_on_this_machine
from gavel.integrations.openenv.client import SEED_BLOCK, OpenEnvServer, Options, parsed
from gavel.integrations.openenv.worlds import SERVED, OpenEnvWorld, ThresholdWorld, form_of, mirror_kind, text_field
from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.environment import SUCCESS
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.trajectory import Trajectory

_TURNS = 20
_ASK_SECONDS = 20.0
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_RANGE = 1000
"""Tasks asked for at a time."""


class _Told(BaseModel):
    """What another Gavel tells of its scenario."""

    model_config = ConfigDict(extra="ignore")

    name: str
    system: str = ""
    max_turns: int = _TURNS
    max_steps: int | None = None
    max_tokens: int | None = None
    rubric: str | None = None
    success: bool = False
    hand_reward: bool = False
    measures: list[str] = []


def scenario_at(address: str) -> Scenario:
    """The scenario of `openenv:address`. Raises `ScenarioError` for an address without a server of OpenEnv."""
    url, options = parsed(address)
    direct = is_on_this_machine(url)
    with httpx.Client(base_url=url, headers=options.headers(), timeout=_ASK_SECONDS, trust_env=not direct) as client:
        about = _About(client, url)
        schema = about.action()
        server = OpenEnvServer(url, options)
        name = about.name()
        train, held_out = about.tasks(options)
        if form_of(schema) == "gavel":
            return _mirror(server, options, about.gavel(), train, held_out)
        return _foreign(server, options, schema, name, about.description(), train, held_out)


def _foreign(
    server: OpenEnvServer,
    options: Options,
    schema: Message,
    name: str,
    description: str,
    train: Sequence[Task],
    held_out: Sequence[Task],
) -> Scenario:
    field = text_field(schema) if form_of(schema) == "action" else None
    if options.style == "text" and field is None:
        raise ScenarioError(
            f"style=text: an action of {server} is not one field of text", "Use style=tools: the agent calls a tool."
        )
    if options.style != "text":
        field = None
    kind = OpenEnvWorld if options.success is None else ThresholdWorld
    style = "text" if field is not None else "mcp" if form_of(schema) == "mcp" else "act"
    return Scenario(
        f"openenv-{_NOT_IN_NAMES.sub('-', name).strip('-.') or 'environment'}",
        system=render("scenarios/openenv_system.j2", called=name, description=description, style=style).strip(),
        environment=functools.partial(kind, server, options, schema, field),
        tasks=train,
        held_out=held_out,
        max_turns=options.turns or _TURNS,
        call_seconds=options.wait + options.seconds + 60,
        rubric=render("scenarios/openenv_rubric.j2").strip(),
    )


def _mirror(
    server: OpenEnvServer, options: Options, told: _Told, train: Sequence[Task], held_out: Sequence[Task]
) -> Scenario:
    return Scenario(
        told.name,
        system=told.system,
        environment=functools.partial(mirror_kind(success=told.success, hand_reward=told.hand_reward), server),
        tasks=train,
        held_out=held_out,
        max_turns=options.turns or told.max_turns,
        max_steps=told.max_steps,
        max_tokens=told.max_tokens,
        call_seconds=options.wait + options.seconds + 60,
        rubric=told.rubric,
        measures={name: functools.partial(_measured, name) for name in told.measures if name != SUCCESS},
    )


def _measured(name: str, trajectory: Trajectory) -> float:
    return float(trajectory.metrics.get(f"{SERVED}{name}", 0.0))


class _About:
    """A server's answers to what is asked of it over HTTP."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = client
        self._url = url
        self._metadata: Message | None = None

    def action(self) -> Message:
        """The schema of actions."""
        found = self._get("/schema", needed=True)
        schema: Any = cast(Message, found).get("action") if isinstance(found, dict) else None
        if not isinstance(schema, dict):
            raise ScenarioError(
                f"{self._url}/schema has no schema of actions: {found!s:.200}",
                "Check the address: is it a server of OpenEnv?",
            )
        return cast(Message, schema)

    def name(self) -> str:
        return str(self._about().get("name") or urlsplit(self._url).netloc)

    def description(self) -> str:
        return str(self._about().get("description") or "")

    def gavel(self) -> _Told:
        try:
            return _Told.model_validate(self._get("/gavel", needed=True))
        except ValidationError as error:
            raise ScenarioError(
                f"{self._url}/gavel is not what this version reads: {error.errors()[0]['msg']}",
                "Install the same version of Gavel on both sides.",
            ) from error

    def tasks(self, options: Options) -> tuple[Sequence[Task], Sequence[Task]]:
        """Tasks to train on, and tasks held out."""
        listed = self._splits()
        if not listed:
            first = options.seed * SEED_BLOCK
            later = first + SEED_BLOCK // 2
            return (
                DrawnTasks(range(first, first + options.tasks), _seeded),
                DrawnTasks(range(later, later + options.held_out), _seeded),
            )
        environment, splits = listed
        kinds = [("train",), ("test", "validation")]
        chosen = [next((name for kind in order for name, of in splits.items() if of == kind), None) for order in kinds]
        train, test = chosen
        if train is None and test is None:
            train = next(iter(splits))
        wanted = [(train, options.tasks), (test, options.held_out)]
        found = [self._listed(environment, name, most) if name is not None else [] for name, most in wanted]
        if not found[0] and not found[1]:
            raise ScenarioError(f"the splits of {self._url} have no tasks", "Look at the server.")
        if not found[0]:  # a benchmark: nothing to train on
            return found[1], []
        ids = {task.id for task in found[0]}
        return found[0], [task for task in found[1] if task.id not in ids]

    def _splits(self) -> tuple[str, dict[str, str]] | None:
        """The environment's name and its splits with their types; None for a server that lists none."""
        names = self._get("/list_environments")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            return None
        environment = names[0]
        splits = self._get(f"/{quote(environment, safe='')}/splits")
        if not isinstance(splits, list):
            return None
        found: dict[str, str] = {}
        for split in cast("list[Any]", splits):
            match split:
                case {"name": str(name), "type": str(kind)}:
                    found[name] = kind
                case _:
                    continue
        return (environment, found) if found else None

    def _listed(self, environment: str, split: str, most: int) -> list[Task]:
        path = f"/{quote(environment, safe='')}"
        counted = self._post(f"{path}/num_tasks", {"split": split})
        match counted:
            case {"num_tasks": int(number)}:
                most = min(most, number)
            case _:
                raise ScenarioError(f"{self._url} does not say how many tasks {split} has: {counted!s:.200}")
        found: list[Task] = []
        for start in range(0, most, _RANGE):
            given = self._post(
                f"{path}/task_range", {"split": split, "start": start, "stop": min(start + _RANGE, most)}
            )
            tasks: Any = cast(Message, given).get("tasks") if isinstance(given, dict) else None
            if not isinstance(tasks, list):
                tasks = [None] * min(_RANGE, most - start)
            found += [_task(split, start + i, each) for i, each in enumerate(cast("list[Any]", tasks))]
        return found

    def _about(self) -> Message:
        if self._metadata is None:
            found = self._get("/metadata")
            self._metadata = cast(Message, found) if isinstance(found, dict) else {}
        return self._metadata

    def _get(self, path: str, *, needed: bool = False) -> Any:
        return self._asked("GET", path, None, needed=needed)

    def _post(self, path: str, body: Message) -> Any:
        return self._asked("POST", path, body, needed=True)

    def _asked(self, method: str, path: str, body: Message | None, *, needed: bool) -> Any:
        """The JSON of an answer; None for a route that is not there, unless it is needed. Raises `ScenarioError`."""
        try:
            answer = self._client.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ScenarioError(
                f"{self._url}{path} cannot be reached: {type(error).__name__}: {error}",
                "Start the server, or check the address: openenv:http://HOST:PORT",
            ) from error
        if answer.status_code in (401, 403):
            raise ScenarioError(
                f"{self._url}{path} answered HTTP {answer.status_code}",
                "Name the variable that holds its token: openenv:URL?token=NAME",
            )
        try:
            content: Any = answer.json() if answer.is_success else None
        except json.JSONDecodeError:
            content = None
        if content is None and needed:
            raise ScenarioError(
                f"{self._url}{path} answered HTTP {answer.status_code}: {answer.text[:200]}",
                "Check the address: is it a server of OpenEnv?",
            )
        return content


def _seeded(seed: int) -> Task:
    return Task(id=f"seed-{seed}", user="", data={"reset": {"seed": seed}})


def _task(split: str, index: int, listed: Any) -> Task:
    """A task that the server lists. What it tells the judge is kept."""
    spec: Message = cast(Message, listed) if isinstance(listed, dict) else {}
    name = spec.get("id") or spec.get("task_id") or f"{split}-{index}"
    told = {
        **{field: spec[field] for field in ("rubric", "reference") if isinstance(spec.get(field), str)},
        **({"criteria": spec["criteria"]} if isinstance(spec.get("criteria"), list) else {}),
    }
    own: Message = {"id": str(name), "user": "", "data": {"reset": {"split": split, "index": index}}}
    try:
        return Task.model_validate({**own, **told})
    except ValidationError:  # criteria of another kind than ours
        return Task.model_validate(own)
