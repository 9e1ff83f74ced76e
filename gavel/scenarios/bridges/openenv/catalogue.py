"""What a server tells of its scenario over HTTP: schemas, metadata, and the tasks of its splits.

`/gavel` tells another Gavel what makes the scenario the same there: system prompt, limits and rubric; a task, what the
judge is told of it. What only the world may know is never sent.
"""

import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from aiohttp import web
from pydantic import TypeAdapter

from gavel.llm.types import Message
from gavel.scenarios.bridges.openenv.served import SPLITS, ServedError, action_schema, observation_schema, task_at
from gavel.scenarios.criterion import Criterion
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task

_MOST_TASKS = 10_000
"""In one answer of the task API."""
_DISTRIBUTION = "gavel-rl"
_CRITERIA: TypeAdapter[list[Criterion]] = TypeAdapter(list[Criterion])


def own_version() -> str | None:
    """Of Gavel; None where it is not installed."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return None


class Catalogue:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def routes(self) -> list[web.RouteDef]:
        name = self._scenario.name
        return [
            web.get("/health", self._health),
            web.get("/metadata", self._metadata),
            web.get("/schema", self._schema),
            web.get("/gavel", self._gavel),
            web.get("/list_environments", self._environments),
            web.get(f"/{name}/splits", self._splits),
            web.post(f"/{name}/tasks", self._tasks),
            web.post(f"/{name}/num_tasks", self._num_tasks),
            web.post(f"/{name}/task", self._task),
            web.post(f"/{name}/task_range", self._task_range),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def _metadata(self, request: web.Request) -> web.Response:
        described = self._scenario.system.strip() or f"The scenario {self._scenario.name} of Gavel."
        return web.json_response(
            {
                "name": self._scenario.name,
                "description": described,
                "readme_content": None,
                "version": own_version(),
                "author": None,
                "documentation_url": None,
            }
        )

    async def _schema(self, request: web.Request) -> web.Response:
        seen = observation_schema()
        state = {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}}
        return web.json_response(
            {
                "action": action_schema(),
                "observation": seen,
                "reset_observation": seen,
                "state": {"title": "GavelState", "type": "object", "properties": state},
            }
        )

    async def _gavel(self, request: web.Request) -> web.Response:
        scenario = self._scenario
        return web.json_response(
            {
                "name": scenario.name,
                "system": scenario.system,
                "max_turns": scenario.max_turns,
                "max_steps": scenario.max_steps,
                "max_tokens": scenario.max_tokens,
                "rubric": scenario.rubric,
                "success": scenario.success is not None,
                "hand_reward": scenario.hand_reward is not None,
                "measures": list(scenario.measures),
            }
        )

    async def _environments(self, request: web.Request) -> web.Response:
        return web.json_response([self._scenario.name])

    async def _splits(self, request: web.Request) -> web.Response:
        found = [{"name": name, "type": name} for name in ("train", "test") if self._scenario.tasks(SPLITS[name])]
        return web.json_response(found)

    async def _tasks(self, request: web.Request) -> web.Response:
        tasks = await self._split(request)
        listed = [_listed(index, tasks[index]) for index in range(min(len(tasks), _MOST_TASKS))]
        return web.json_response({"tasks": listed, "env_name": self._scenario.name})

    async def _num_tasks(self, request: web.Request) -> web.Response:
        return web.json_response({"num_tasks": len(await self._split(request))})

    async def _task(self, request: web.Request) -> web.Response:
        tasks, index = await self._split(request), (await _body(request)).get("index")
        if not isinstance(index, int):
            raise ServedError("index must be a whole number")
        return web.json_response({"task": _listed(index, task_at(tasks, index))})

    async def _task_range(self, request: web.Request) -> web.Response:
        tasks, given = await self._split(request), await _body(request)
        limits = [given.get(name) for name in ("start", "stop")]
        if not all(isinstance(limit, int | None) for limit in limits):
            raise ServedError("start and stop must be whole numbers")
        indices = range(len(tasks))[limits[0] : limits[1]][:_MOST_TASKS]
        return web.json_response({"tasks": [_listed(index, tasks[index]) for index in indices]})

    async def _split(self, request: web.Request) -> Sequence[Task]:
        name = (await _body(request)).get("split")
        if not isinstance(name, str) or name not in SPLITS:
            raise ServedError(f"there is no split {name!r}; there are train and test")
        return self._scenario.tasks(SPLITS[name])


async def _body(request: web.Request) -> Message:
    """The JSON object of a request. Raises `ServedError` for anything else."""
    try:
        body: Any = json.loads(await request.text())
    except (ValueError, RecursionError) as error:
        raise ServedError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ServedError("the body must be a JSON object")
    return cast(Message, body)


def _listed(index: int, task: Task) -> Message:
    told: Message = {
        "rubric": task.rubric,
        "reference": task.reference,
        "criteria": _CRITERIA.dump_python(task.criteria, mode="json"),
    }
    return {"id": task.id, "index": index, **{name: value for name, value in told.items() if value}}
