"""`gavel backend`: this machine trains and serves for clients elsewhere."""

import asyncio
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gavel.base.extras import need_extra
from gavel.cli.lazy_commands import single_command
from gavel.cli.options import ENGINE_FLAGS, Flag, run_config, with_options
from gavel.trainer.config import VllmSettings
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import runs_root

FLAGS = [
    *(flag for flag in ENGINE_FLAGS if flag.name in ("--engine", "--vllm-url", "--vllm-replicas", "--max-context")),
    Flag("backend.slots", "--slots"),
    Flag("backend.tracker", "--tracker"),
]


def backend(
    values: Mapping[str, Any],
    host: Annotated[str, typer.Option(help="Address to listen on. Beyond 127.0.0.1, put TLS before it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8090,
    runs: Annotated[Path | None, typer.Option(help="Where runs are kept. Default: GAVEL_RUNS, else runs.")] = None,
    versions: Annotated[int, typer.Option(min=1, help="Steps whose adapters are served at once.")] = 1,
    idle_minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="End after so long without a request or a running step. Default: never."),
    ] = None,
) -> None:
    """Train and serve models on this machine for gavel.RemoteBackend elsewhere.

    Clients show the key in GAVEL_BACKEND_KEY; where that is not set, one is made and printed.

    A step that a client has sent is made once, whatever is cut, killed or sent again. Runs are kept here.
    Started by torchrun, the first process serves, and all of them learn.
    """
    need_extra("service", "gavel backend")
    need_extra("train", "gavel backend")
    from gavel.trainer.backends.local import LocalBackend
    from gavel.trainer.backends.remote.wire import checked_key
    from gavel.trainer.backends.server.app import serve
    from gavel.trainer.distributed import join, launched
    from gavel.trainer.engines.vllm_launch import check_startable
    from gavel.trainer.learner.replicas import follow_leader
    from gavel.trainer.runs.trackers import chosen_tracker

    settings = run_config("", values, flags=FLAGS).backend
    if settings.engine != "transformers":
        check_startable(VllmSettings() if settings.engine == "vllm" else settings.engine)
    chosen_tracker(settings.tracker)  # these are refused now, not when the first client registers a model
    if launched():
        world = join()  # now: the processes meet before the first client comes
        if world.rank:
            return follow_leader(world)
    given = os.environ.get("GAVEL_BACKEND_KEY")  # no option: a command line is seen by every user of the machine
    key = checked_key(given) if given else secrets.token_urlsafe(24)
    root = runs_root(runs)
    local = LocalBackend(
        root,
        engine=settings.engine,
        slots=settings.slots,
        max_context=settings.max_context,
        versions=versions,
        tracker=settings.tracker,
    )

    def announce(url: str) -> None:
        typer.echo(f"Gavel backend · {url} · runs in {root}")
        if not given:
            typer.echo(f"GAVEL_BACKEND_URL={url} GAVEL_BACKEND_KEY={key}")

    asyncio.run(
        serve(
            local,
            key=key,
            root=root,
            host=host,
            port=port,
            announce=announce,
            idle_seconds=None if idle_minutes is None else 60 * idle_minutes,
        )
    )


app = single_command(with_options(backend, RunConfig, FLAGS))
