"""The scenario of an address, from one query of the server's actions and tasks.

Tasks are those that the server lists (splits `train` and `test`), or seeds. Training seeds are never held out.
"""

import functools
import json
import re
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote, urlsplit

import httpx
from pydantic import ValidationError

from gavel.base.network import is_on_this_machine
from gavel.integrations.openenv.client import OpenEnvServer, Options, parsed
from gavel.integrations.openenv.worlds import GAVEL_ACTION, OpenEnvWorld, ThresholdWorld, form_of, text_field
from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task

_TURNS = 20
_ASK_SECONDS = 20.0
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_RANGE = 1000
"""Tasks per request."""


def scenario_at(address: str) -> Scenario:
    """The scenario of `openenv:address`. Raises `ScenarioError` if no OpenEnv server is there."""
    url, options = parsed(address)
    direct = is_on_this_machine(url)
    with httpx.Client(base_url=url, headers=options.headers(), timeout=_ASK_SECONDS, trust_env=not direct) as client:
        ask = _Asker(client, url)
        match ask("/schema", needed=True):
            case {"action": {**schema}}:
                action = cast(Message, schema)
            case answer:
                raise ScenarioError(
                    f"{url}/schema has no schema of actions: {answer!s:.200}",
                    "Check the address: is it a server of OpenEnv?",
                )
        return _make_scenario(OpenEnvServer(url, options), options, action, ask)


def _make_scenario(server: OpenEnvServer, options: Options, action: Message, ask: "_Asker") -> Scenario:
    about = ask("/metadata")
    told = cast(Message, about) if isinstance(about, dict) else {}
    name = str(told.get("name") or urlsplit(server.url).netloc)
    is_gavel = action.get("title") == GAVEL_ACTION
    field = text_field(action) if options.style == "text" and form_of(action) == "action" else None
    if options.style == "text" and field is None:
        raise ScenarioError(
            f"style=text: an action of {server} is not one field of text", "Use style=tools: the agent calls a tool."
        )
    style = "text" if field is not None else "mcp" if form_of(action) == "mcp" else "act"
    description = str(told.get("description") or "")
    system = render("scenarios/openenv_system.j2", called=name, description=description, style=style).strip()
    if is_gavel:
        field, system, options = "content", description, options.model_copy(update={"show": options.show or "text"})
    train, held_out = _make_tasks(ask, options)
    return Scenario(
        f"openenv-{_NOT_IN_NAMES.sub('-', name).strip('-.') or 'environment'}",
        system=system,
        environment=functools.partial(
            OpenEnvWorld if options.success is None else ThresholdWorld, server, options, action, field
        ),
        tasks=train,
        held_out=held_out,
        max_turns=options.turns or told.get("max_turns") or _TURNS,
        call_seconds=options.wait + options.seconds + 60,
        rubric=render("scenarios/openenv_rubric.j2").strip(),
    )


def _make_tasks(ask: "_Asker", options: Options) -> tuple[Sequence[Task], Sequence[Task]]:
    """The training tasks and the held-out tasks."""
    environment = next((name for name in _list(ask("/list_environments")) if isinstance(name, str)), None)
    splits: dict[str, str] = {}
    for split in [] if environment is None else _list(ask(f"/{quote(environment, safe='')}/splits")):
        match split:
            case {"name": str(name), "type": str(kind)}:
                splits[name] = kind
            case _:
                continue
    if environment is None or not splits:
        return options.drawn(_seeded)
    train = next((name for name, kind in splits.items() if kind == "train"), None)
    test = next((name for wanted in ("test", "validation") for name, kind in splits.items() if kind == wanted), None)
    if train is None and test is None:
        train = next(iter(splits))
    trained = _list_tasks(ask, environment, train, options.tasks)
    held_out = _list_tasks(ask, environment, test, options.held_out)
    if not trained and not held_out:
        raise ScenarioError(f"the splits of {ask.url} have no tasks", "Look at the server.")
    if not trained:  # a benchmark without training tasks
        return held_out, []
    ids = {task.id for task in trained}
    return trained, [task for task in held_out if task.id not in ids]


def _list_tasks(ask: "_Asker", environment: str, split: str | None, most: int) -> list[Task]:
    """The first tasks of a split; empty if it does not exist."""
    if split is None:
        return []
    path = f"/{quote(environment, safe='')}"
    match ask(f"{path}/num_tasks", {"split": split}, needed=True):
        case {"num_tasks": int(number)}:
            most = min(most, number)
        case answer:
            raise ScenarioError(f"{ask.url} does not say how many tasks {split} has: {answer!s:.200}")
    found: list[Task] = []
    for start in range(0, most, _RANGE):
        stop = min(start + _RANGE, most)
        answer = ask(f"{path}/task_range", {"split": split, "start": start, "stop": stop}, needed=True)
        given = cast(Message, answer).get("tasks") if isinstance(answer, dict) else None
        tasks = _list(given) if isinstance(given, list) else [None] * (stop - start)
        found += [_task(split, start + i, each) for i, each in enumerate(tasks)]
    return found


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


class _Asker:
    """A simple HTTP client of a server."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = client
        self.url = url

    def __call__(self, path: str, body: Message | None = None, *, needed: bool = False) -> Any:
        """The JSON of a response; None for an unknown optional route. Raises `ScenarioError`."""
        try:
            answer = self._client.request("GET" if body is None else "POST", path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ScenarioError(
                f"{self.url}{path} cannot be reached: {type(error).__name__}: {error}",
                "Start the server, or check the address: openenv:http://HOST:PORT",
            ) from error
        if answer.status_code in (401, 403):
            raise ScenarioError(
                f"{self.url}{path} answered HTTP {answer.status_code}",
                "Name the variable that holds its token: openenv:URL?token=NAME",
            )
        try:
            content: Any = answer.json() if answer.is_success else None
        except json.JSONDecodeError:
            content = None
        if content is None and needed:
            raise ScenarioError(
                f"{self.url}{path} answered HTTP {answer.status_code}: {answer.text[:200]}",
                "Check the address: is it a server of OpenEnv?",
            )
        return content


def _seeded(seed: int) -> Task:
    return Task(id=f"seed-{seed}", user="", data={"reset": {"seed": seed}})


def _task(split: str, index: int, listed: Any) -> Task:
    """A task in the server's list, with its information for the judge."""
    spec: Message = cast(Message, listed) if isinstance(listed, dict) else {}
    name = spec.get("id") or spec.get("task_id") or f"{split}-{index}"
    told = {
        **{field: spec[field] for field in ("rubric", "reference") if isinstance(spec.get(field), str)},
        **({"criteria": spec["criteria"]} if isinstance(spec.get("criteria"), list) else {}),
    }
    own: Message = {"id": str(name), "user": "", "data": {"reset": {"split": split, "index": index}}}
    try:
        return Task.model_validate({**own, **told})
    except ValidationError:  # criteria in another form than ours
        return Task.model_validate(own)
