"""The routes of Atropos' trajectory API, with its paths, bodies and responses.

Intended differences: a group is on disk before it is acknowledged; lengths are checked; batches are the oldest groups,
and an interrupted one is resent under the same `batch_id`; a group that is sent twice counts once; requests before a
trainer registers lose nothing. Bodies are plain or gzip.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from gavel.integrations._serving import guard
from gavel.integrations.atropos.group import AtroposGroup, first_problem
from gavel.integrations.atropos.queue import EnvRegistration, GroupQueue, RefusedRequest, TrainerRegistration

_BODY_SECONDS = 120.0
HEALTH = "/healthz"
KEY_VARIABLE = "GAVEL_ATROPOS_KEY"


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


_EXAMPLE = ("tokens", "masks", "scores", "advantages", "ref_logprobs", "generation_params", "inference_logprobs")


class _Environment(BaseModel):
    """The body of `POST /disconnect-env` and of `GET /status-env`."""

    env_id: int


def create_app(queue: GroupQueue, *, key: str | None = None, most_bytes: int = 256 << 20) -> web.Application:
    """Creates the application. `key` None: none is required, and this machine alone is answered. `most_bytes`: of a
    body, decompressed."""
    api = _Api(queue)
    app = web.Application(middlewares=[guard(key, "detail", HEALTH), _refuse], client_max_size=most_bytes)

    def route(method: str, path: str, answer: Callable[..., Any], body: Any = None) -> None:
        """Adds a route that answers with what `answer`, called in a thread, makes of its body."""
        adapter = TypeAdapter[Any](body)

        async def handle(request: web.Request) -> web.Response:
            given = None if body is None else await _read_body(request, most_bytes)
            told = await asyncio.to_thread(lambda: answer() if given is None else answer(adapter.validate_json(given)))
            if path.startswith("/scored_data"):
                queue.changed.set()
            return web.Response(text=told) if isinstance(told, str) else web.json_response(told)

        app.router.add_route(method, path, handle)

    route("GET", "/", lambda: {"message": "AtroposLib API, served by Gavel"})
    route("GET", HEALTH, lambda: {"status": "ok"})
    route("GET", "/status", lambda: {"current_step": queue.step, "queue_size": len(queue.waiting)})
    route("GET", "/latest_example", api.latest_example)
    route("GET", "/wandb_info", lambda: api.of_trainer(None, group="wandb_group", project="wandb_project"))
    route("GET", "/info", lambda: api.of_trainer(-1, batch_size="batch_size", max_token_len="max_token_len"))
    route("POST", "/register", api.register, TrainerRegistration)
    route("POST", "/register-env", api.register_env, EnvRegistration)
    route("POST", "/disconnect-env", api.disconnect_env, _Environment)
    route("POST", "/scored_data", api.scored_data, AtroposGroup)
    route("POST", "/scored_data_list", api.scored_data_list, list[AtroposGroup])
    route("GET", "/status-env", api.status_env, _Environment)
    route("GET", "/reset_data", api.reset_data)
    lending = asyncio.Lock()

    async def batch(request: web.Request) -> web.StreamResponse:
        """Lends a batch, and records whether the client received it; if not, the next request gets it again."""
        api.check_no_own("GET /batch")
        if queue.peers.trainer is None:
            message = "Trainer not registered. Call /register first."
            return web.json_response({"status": "error", "message": message, "batch": []})
        async with lending:
            lent = await asyncio.to_thread(queue.lend)
            if lent is None:
                return web.json_response({"batch": None})
            number, groups = lent
            bodies = await asyncio.to_thread(lambda: ",".join(group.model_dump_json() for group in groups))
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await response.write(f'{{"batch": [{bodies}], "batch_id": {number}}}'.encode())
            if request.transport is not None and not request.transport.is_closing():
                await asyncio.to_thread(queue.delivered, number)
        await response.write_eof()
        return response

    app.router.add_get("/batch", batch)
    return app


class _Api:
    """The other routes' answers."""

    def __init__(self, queue: GroupQueue) -> None:
        self._queue = queue

    def check_no_own(self, request: str) -> None:
        """Raises `RefusedRequest` if the server has its own learner."""
        if self._queue.space is not None:
            raise RefusedRequest(
                409,
                f"{request} is refused: this server's own learner takes the batches",
                "Start `gavel serve-atropos` without --model to hand them to another trainer.",
            )

    def latest_example(self) -> dict[str, Any]:
        group = self._queue.newest()
        return (
            {name: [] for name in (*_EXAMPLE, "messages", "images")} if group is None else group.model_dump(mode="json")
        )

    def of_trainer(self, other: int | None, **fields: str) -> dict[str, Any]:
        return {name: getattr(self._queue.peers.trainer, field, other) for name, field in fields.items()}

    def register(self, body: TrainerRegistration) -> dict[str, Any]:
        self.check_no_own("POST /register")
        self._queue.register(body)
        return {"uuid": uuid.uuid4().int}

    def register_env(self, body: EnvRegistration) -> dict[str, Any]:
        peers = self._queue.peers
        if peers.trainer is None or not peers.started:
            return {"status": "wait for trainer to start"}
        env = self._queue.register_env(body)
        return {
            "status": "success",
            "env_id": env.env_id,
            "wandb_name": env.real_name,
            "checkpoint_dir": peers.trainer.checkpoint_dir,
            "starting_step": peers.step,
            "checkpoint_interval": peers.trainer.save_checkpoint_interval,
            "num_steps": peers.trainer.num_steps,
        }

    def disconnect_env(self, body: _Environment) -> dict[str, Any]:
        if self._queue.disconnect_env(body.env_id):
            return {"status": "success"}
        return {"status": "failure", "error": f"there is no environment {body.env_id}"}

    def scored_data(self, body: AtroposGroup) -> dict[str, Any]:
        (is_new,) = self._queue.accept([body])
        return {"status": "received", **({} if is_new else {"duplicate": True})}

    def scored_data_list(self, body: list[AtroposGroup]) -> dict[str, Any]:
        again = self._queue.accept(body).count(False)
        return {"status": "received", "groups_processed": len(body), **({"duplicates": again} if again else {})}

    def status_env(self, body: _Environment) -> dict[str, Any]:
        """Sizes in groups of this environment's size: an environment pauses if several batches wait."""
        peers, waiting = self._queue.peers, self._queue.waiting
        env = next((each for each in peers.envs if each.env_id == body.env_id), None)
        if env is None:
            raise RefusedRequest(404, f"there is no environment {body.env_id}", "Register it: POST /register-env")
        own = [group.size for group in waiting if group.env_id == body.env_id]
        size = max([env.registration.group_size, *own])
        return {
            "current_step": peers.step,
            "queue_size": sum(group.size for group in waiting) // size,
            "self_queue_size": sum(own) // size,
            "max_group_size": max((group.size for group in waiting), default=1),
            "unallocated_fraction": 1.0,
            "env_weight": peers.share(env),
        }

    def reset_data(self) -> str:
        self.check_no_own("GET /reset_data")
        self._queue.reset()
        return "Reset successful"
