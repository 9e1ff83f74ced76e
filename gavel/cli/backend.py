"""`gavel backend`: this machine trains and serves for clients elsewhere."""

import asyncio
import os
import secrets
from pathlib import Path
from typing import Annotated, Literal

import typer

from gavel.base.extras import need_extra
from gavel.cli.lazy_commands import single_command
from gavel.cli.run_file import validate
from gavel.trainer.config import EngineChoice, VllmSettings
from gavel.trainer.runs.run_directory import runs_root


def backend(
    host: Annotated[str, typer.Option(help="Address to listen on. Beyond 127.0.0.1, put TLS before it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8090,
    runs: Annotated[Path | None, typer.Option(help="Where runs are kept. Default: GAVEL_RUNS, else runs.")] = None,
    engine: Annotated[str, typer.Option(help="What samples the rollouts: transformers or vllm.")] = "transformers",
    vllm_url: Annotated[
        list[str] | None, typer.Option(help="Address of a vLLM server that samples the rollouts. Repeatable.")
    ] = None,
    vllm_replicas: Annotated[
        int | None, typer.Option(min=1, help="vLLM servers to start for the rollouts, each on a GPU of its own.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Conversations that are sampled at once.")] = 128,
    max_context: Annotated[
        int | None,
        typer.Option(min=16, help="Tokens of a conversation. Default: the model's own."),
    ] = None,
    versions: Annotated[int, typer.Option(min=1, help="Steps whose adapters are served at once.")] = 1,
    tracker: Annotated[
        Literal["wandb", "trackio", "none"] | None,
        typer.Option(help="Where metrics, groups and reports are shown, too. Default: as WANDB_MODE says."),
    ] = None,
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

    if engine not in ("transformers", "vllm"):
        raise typer.BadParameter("transformers or vllm", param_hint="--engine")
    sampler: EngineChoice = "transformers"
    if engine == "vllm" or vllm_url or vllm_replicas:
        settings = {"urls": tuple(vllm_url or ()), "replicas": vllm_replicas or 1}
        sampler = validate(VllmSettings, settings, {("urls",): "--vllm-url", ("replicas",): "--vllm-replicas"})
        check_startable(sampler)
    chosen_tracker(tracker)  # these are refused now, not when the first client registers a model
    if launched():
        world = join()  # now: the processes meet before the first client comes
        if world.rank:
            return follow_leader(world)
    given = os.environ.get("GAVEL_BACKEND_KEY")  # no option: a command line is seen by every user of the machine
    key = checked_key(given) if given else secrets.token_urlsafe(24)
    root = runs_root(runs)
    local = LocalBackend(root, engine=sampler, slots=slots, max_context=max_context, versions=versions, tracker=tracker)

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


app = single_command(backend)
