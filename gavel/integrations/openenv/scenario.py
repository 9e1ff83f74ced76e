"""The scenario of an address, from one query of the server's actions and tasks.

Tasks are those that the server lists (splits `train` and `test`), or seeds. Training seeds are never held out.
"""

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast
from urllib.parse import quote, urlsplit

import httpx
from pydantic import ValidationError

from gavel.base.network import is_on_this_machine
from gavel.integrations.openenv.client import OpenEnvServer, Options, parsed
from gavel.integrations.openenv.worlds import GAVEL_ACTION, OpenEnvWorld, ThresholdWorld, is_mcp, text_field
from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task

_TURNS, _ASK_SECONDS = 20, 20.0
_MOST_CHARACTERS = 200_000
"""Max characters of a tool's result that the agent is shown."""
_RANGE = 1000
"""Tasks per request."""


def scenario_at(address: str) -> Scenario:
    """The scenario of `openenv:address`. Raises `ScenarioError` if no OpenEnv server is there."""
    url, options = parsed(address)
    trust, headers = not is_on_this_machine(url), options.headers()
    with httpx.Client(base_url=url, headers=headers, timeout=_ASK_SECONDS, trust_env=trust) as client:
        ask = functools.partial(_ask, client, url)
        schema: Any = ask("/schema", needed=True)
        action = cast(Message, schema).get("action") if isinstance(schema, dict) else None
        if not isinstance(action, dict):
            raise ScenarioError(
                f"{url}/schema has no schema of actions: {schema!s:.200}",
                "Check the address: is it a server of OpenEnv?",
            )
        about: Any = ask("/metadata")
        train, held_out = _make_tasks(ask, url, options)
    action, told = cast(Message, action), cast(Message, about) if isinstance(about, dict) else {}
    name, description = str(told.get("name") or urlsplit(url).netloc), str(told.get("description") or "")
    field = text_field(action) if options.style == "text" and not is_mcp(action) else None
    if options.style == "text" and field is None:
        raise ScenarioError(
            f"style=text: an action of {url} is not one field of text", "Use style=tools: the agent calls a tool."
        )
    style = "text" if field is not None else "mcp" if is_mcp(action) else "act"
    system = render("scenarios/openenv_system.j2", called=name, description=description, style=style).strip()
    if action.get("title") == GAVEL_ACTION:
        field, system, options = "content", description, options.model_copy(update={"show": options.show or "text"})
    kind = OpenEnvWorld if options.success is None else ThresholdWorld
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "environment"
    return Scenario(
        f"openenv-{plain}",
        system=system,
        environment=functools.partial(kind, OpenEnvServer(url, options), options, action, field),
        tasks=train,
        held_out=held_out,
        max_turns=options.turns or told.get("max_turns") or _TURNS,
        max_tool_characters=_MOST_CHARACTERS,
        call_seconds=options.wait + options.seconds + 60,
        rubric=render("scenarios/openenv_rubric.j2").strip(),
    )


def _make_tasks(ask: Callable[..., Any], url: str, options: Options) -> tuple[Sequence[Task], Sequence[Task]]:
    """The training tasks and the held-out tasks."""
    environment = next((name for name in _list(ask("/list_environments")) if isinstance(name, str)), None)
    path = f"/{quote(environment or '', safe='')}"
    splits: dict[str, str] = {}
    for split in [] if environment is None else _list(ask(f"{path}/splits")):
        match split:
            case {"name": str(name), "type": str(kind)}:
                splits[name] = kind
            case _:
                pass
    if not splits:
        return options.drawn(lambda seed: Task(id=f"seed-{seed}", user="", data={"reset": {"seed": seed}}))
    train = next((name for name, kind in splits.items() if kind == "train"), None)
    test = next((name for wanted in ("test", "validation") for name, kind in splits.items() if kind == wanted), None)
    if train is None and test is None:
        train = next(iter(splits))
    trained = _list_tasks(ask, url, path, train, options.tasks)
    held_out = _list_tasks(ask, url, path, test, options.held_out)
    if not trained and not held_out:
        raise ScenarioError(f"the splits of {url} have no tasks", "Look at the server.")
    if not trained:  # a benchmark without training tasks
        return held_out, []
    ids = {task.id for task in trained}
    return trained, [task for task in held_out if task.id not in ids]


def _list_tasks(ask: Callable[..., Any], url: str, path: str, split: str | None, most: int) -> list[Task]:
    """The first tasks of a split; empty if it does not exist."""
    if split is None:
        return []
    match ask(f"{path}/num_tasks", {"split": split}, needed=True):
        case {"num_tasks": int(number)}:
            most = min(most, number)
        case answer:
            raise ScenarioError(f"{url} does not say how many tasks {split} has: {answer!s:.200}")
    found: list[Task] = []
    for start in range(0, most, _RANGE):
        stop = min(start + _RANGE, most)
        answer: Any = ask(f"{path}/task_range", {"split": split, "start": start, "stop": stop}, needed=True)
        given: Any = cast(Message, answer).get("tasks") if isinstance(answer, dict) else None
        tasks = _list(given) if isinstance(given, list) else [None] * (stop - start)
        found += [_task(split, start + i, each) for i, each in enumerate(tasks)]
    return found


def _task(split: str, index: int, listed: Any) -> Task:
    """A task in the server's list, with its information for the judge."""
    spec: Message = cast(Message, listed) if isinstance(listed, dict) else {}
    name = spec.get("id") or spec.get("task_id") or f"{split}-{index}"
    kinds = {"rubric": str, "reference": str, "criteria": list}
    told = {key: spec[key] for key, kind in kinds.items() if isinstance(spec.get(key), kind)}
    own: Message = {"id": str(name), "user": "", "data": {"reset": {"split": split, "index": index}}}
    try:
        return Task.model_validate({**own, **told})
    except ValidationError:  # criteria in another form than ours
        return Task.model_validate(own)


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _ask(client: httpx.Client, url: str, path: str, body: Message | None = None, *, needed: bool = False) -> Any:
    """The JSON of a response; None for an unknown optional route. Raises `ScenarioError`."""
    try:
        answer = client.request("GET" if body is None else "POST", path, json=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ScenarioError(
            f"{url}{path} cannot be reached: {type(error).__name__}: {error}",
            "Start the server, or check the address: openenv:http://HOST:PORT",
        ) from error
    if answer.status_code in (401, 403):
        raise ScenarioError(
            f"{url}{path} answered HTTP {answer.status_code}",
            "Name the variable that holds its token: openenv:URL?token=NAME",
        )
    try:
        content: Any = answer.json() if answer.is_success else None
    except json.JSONDecodeError:
        content = None
    if content is None and needed:
        raise ScenarioError(
            f"{url}{path} answered HTTP {answer.status_code}: {answer.text[:200]}",
            "Check the address: is it a server of OpenEnv?",
        )
    return content
