"""The routes of Atropos' trajectory API for environments, with its paths, bodies and responses.

Intended differences: a group is on disk before it is acknowledged; lengths are checked; a group that is sent twice
counts once; the trainer is this server's own, so that no other one may register or take batches. Bodies are plain or
gzip.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from gavel.integrations._serving import guard
from gavel.integrations.atropos.group import AtroposGroup, first_problem
from gavel.integrations.atropos.queue import EnvRegistration, GroupQueue, RefusedRequest

_BODY_SECONDS = 120.0
HEALTH = "/healthz"
KEY_VARIABLE = "GAVEL_ATROPOS_KEY"
LEAST_WEIGHT = 0.01
"""Min share of the sampling, so that no environment is starved."""


@dataclass(frozen=True, kw_only=True)
class TrainerInfo:
    """What environments are told of the learner."""

    wandb_group: str
    wandb_project: str
    batch_size: int
    """Sequences per batch."""
    max_token_len: int
    checkpoint_dir: str
    num_steps: int
    """An environment ends once the step and the batches that wait are more than this."""


@web.middleware
async def _refuse(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The response to a rejected request; `detail` as in FastAPI's servers."""
    try:
        return await handler(request)
    except RefusedRequest as error:
        again = {"Retry-After": "5"} if error.status == 503 else {}
        refusal = web.json_response({"detail": str(error)}, status=error.status, headers=again)
        if error.status in (400, 408):  # the rest of its body cannot be told from another request
            refusal.force_close()
        return refusal
    except ValidationError as error:
        is_json = error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid"
        return web.json_response({"detail": first_problem(error)}, status=422 if is_json else 400)


async def _read_body(request: web.Request, most_bytes: int) -> bytes:
    """The decompressed body. Raises `RefusedRequest`."""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise RefusedRequest(408, f"the body did not arrive within {_BODY_SECONDS:g} s", "Send it again.") from None
    except web.HTTPRequestEntityTooLarge:
        raise RefusedRequest(
            413, f"the body is larger than {most_bytes:,} bytes", "Send smaller groups, or raise --max-body-mb."
        ) from None
    except web.RequestPayloadError as error:
        request.content.feed_eof()  # else the server reads on, and logs a traceback
        raise RefusedRequest(400, f"the body cannot be read: {error}", "Send it as it is, or with gzip.") from None


_EXAMPLE = (
    *("tokens", "masks", "scores", "advantages", "ref_logprobs", "messages", "generation_params"),
    *("inference_logprobs", "images"),
)


class _Environment(BaseModel):
    """The body of `POST /disconnect-env` and of `GET /status-env`."""

    env_id: int


def create_app(
    queue: GroupQueue, trainer: TrainerInfo, *, key: str | None = None, most_bytes: int = 256 << 20
) -> web.Application:
    """Creates the application. `key` None: none is required, and this machine alone is answered. `most_bytes`: of a
    body, decompressed."""
    app = web.Application(middlewares=[guard(key, "detail", HEALTH), _refuse], client_max_size=most_bytes)

    def route(method: str, path: str, answer: Callable[..., Any], body: Any = None) -> None:
        """Adds a route that answers with what `answer`, called in a thread, makes of its body."""
        adapter = TypeAdapter[Any](body)

        async def handle(request: web.Request) -> web.Response:
            given = None if body is None else await _read_body(request, most_bytes)
            told = await asyncio.to_thread(lambda: answer() if given is None else answer(adapter.validate_json(given)))
            if path.startswith("/scored_data"):
                queue.changed.set()
            return web.json_response(told)

        app.router.add_route(method, path, handle)

    def of_trainer(**fields: str) -> Callable[[], dict[str, Any]]:
        return lambda: {name: getattr(trainer, field) for name, field in fields.items()}

    def latest_example() -> dict[str, Any]:
        group = queue.newest()
        return {name: [] for name in _EXAMPLE} if group is None else group.model_dump(mode="json")

    def register_env(asked: EnvRegistration) -> dict[str, Any]:
        env_id, name = queue.register_env(asked)
        own = of_trainer(checkpoint_dir="checkpoint_dir", num_steps="num_steps")()
        steps = {"starting_step": queue.step, "checkpoint_interval": 0}
        return {"status": "success", "env_id": env_id, "wandb_name": name, **own, **steps}

    def disconnect_env(named: _Environment) -> dict[str, Any]:
        if queue.disconnect_env(named.env_id):
            return {"status": "success"}
        return {"status": "failure", "error": f"there is no environment {named.env_id}"}

    def scored_data(group: AtroposGroup) -> dict[str, Any]:
        (is_new,) = queue.accept([group])
        return {"status": "received", **({} if is_new else {"duplicate": True})}

    def scored_data_list(groups: list[AtroposGroup]) -> dict[str, Any]:
        again = queue.accept(groups).count(False)
        return {"status": "received", "groups_processed": len(groups), **({"duplicates": again} if again else {})}

    def status_env(named: _Environment) -> dict[str, Any]:
        """Sizes in groups of this environment's size: an environment pauses if several batches wait."""
        known, waiting = queue.environments, queue.waiting
        env = next((each for each in known if each.id == named.env_id), None)
        if env is None:
            raise RefusedRequest(404, f"there is no environment {named.env_id}", "Register it: POST /register-env")
        own = [group.size for group in waiting if group.env_id == env.id]
        size, total = max([env.group_size, *own]), sum(each.weight for each in known if each.connected)
        return {
            "current_step": queue.step,
            "queue_size": sum(group.size for group in waiting) // size,
            "self_queue_size": sum(own) // size,
            "max_group_size": max((group.size for group in waiting), default=1),
            "unallocated_fraction": 1.0,
            "env_weight": max(LEAST_WEIGHT, env.weight / total) if total > 0 else 1.0,
        }

    def refuse_trainer() -> None:
        raise RefusedRequest(
            409,
            "this server's own learner takes the batches",
            "Another trainer gets them from atroposlib's server: run-api.",
        )

    route("GET", "/", lambda: {"message": "AtroposLib API, served by Gavel"})
    route("GET", HEALTH, lambda: {"status": "ok"})
    route("GET", "/status", lambda: {"current_step": queue.step, "queue_size": len(queue.waiting)})
    route("GET", "/latest_example", latest_example)
    route("GET", "/wandb_info", of_trainer(group="wandb_group", project="wandb_project"))
    route("GET", "/info", of_trainer(batch_size="batch_size", max_token_len="max_token_len"))
    route("POST", "/register-env", register_env, EnvRegistration)
    route("POST", "/disconnect-env", disconnect_env, _Environment)
    route("POST", "/scored_data", scored_data, AtroposGroup)
    route("POST", "/scored_data_list", scored_data_list, list[AtroposGroup])
    route("GET", "/status-env", status_env, _Environment)
    for method, path in (("POST", "/register"), ("GET", "/batch"), ("GET", "/reset_data")):
        route(method, path, refuse_trainer)
    return app
