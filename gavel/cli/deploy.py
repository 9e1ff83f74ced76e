"""`gavel deploy`: a run's checkpoint, served by a host."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.cli.backend_url import BackendUrl
from gavel.cli.lazy_commands import single_command

if TYPE_CHECKING:
    from gavel.trainer.deploy.record import AdapterFacts

    _Checkpoint = tuple[Path, AdapterFacts, dict[str, Any]]
    """The directory that holds its run's deployments, the adapter, and the run's description."""


def deploy(
    run: Annotated[str, typer.Argument(help="A run as `gavel runs` lists it (desk/qwen3-8b), @12 for its step 12.")],
    host: Annotated[
        str,
        typer.Argument(
            help="vllm:http://HOST:PORT, together, fireworks, wandb, huggingface or ollama: docs/deploy.md."
        ),
    ],
    best: Annotated[bool, typer.Option("--best", help="The step with the highest --best-by, not the newest.")] = False,
    best_by: Annotated[str, typer.Option(help="split/metric of metrics.jsonl.")] = "held_out/success",
    wait: Annotated[bool, typer.Option(help="Wait until it serves; without, the same command later goes on.")] = True,
    smoke_test: Annotated[
        bool, typer.Option(help="Prove by a few answers that this step is served; loads the base here.")
    ] = True,
    deadline: Annotated[float, typer.Option(min=1, help="Seconds to wait until it serves.")] = 3600.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: an option of the host; may be given several times.")
    ] = None,
    backend_url: BackendUrl = None,
) -> None:
    """Serve a run's checkpoint at a host, prove what it serves, and say what it costs.

    The same command after a crash goes on where it was. `gavel deployments` lists, `gavel undeploy` removes.
    The adapter of a backend's run is fetched, and deployed from here.
    """
    need_extra("train", "gavel deploy")
    from gavel.trainer.deploy.deploy import deploy_step

    options = dict(map(_setting, settings or ()))
    if backend_url is None:
        directory, adapter, description = _found_here(run, best, best_by)
    else:
        directory, adapter, description = asyncio.run(_fetched(backend_url, run, best, best_by))
    deployed = asyncio.run(
        deploy_step(
            directory,
            adapter,
            description,
            host,
            wait=wait,
            smoke_test=smoke_test,
            deadline=deadline,
            report=lambda line: typer.echo(line, err=True),
            options=options,
        )
    )
    typer.echo(f"{deployed.id}  {deployed.base_url}  {deployed.model_id}")
    typer.echo(deployed.stop_hint, err=True)


def _found_here(run: str, best: bool, best_by: str) -> "_Checkpoint":
    from gavel.cli.kept_run import of_this_machine, one_step
    from gavel.trainer.deploy.deploy import facts_of_run
    from gavel.trainer.runs.run_directory import read_description, split_step

    with of_this_machine(run):
        directory, step = split_step(run)
    one_step(run, step, best, "--best")
    adapter = facts_of_run(directory, "best" if best else "latest" if step is None else step, best_by)
    return directory, adapter, read_description(directory / "model.json")


async def _fetched(url: str, run: str, best: bool, best_by: str) -> "_Checkpoint":
    from gavel.cli.kept_run import one_step, run_at
    from gavel.trainer.deploy.deploy import exported_facts

    async with run_at(url, run) as (backend, model, step):
        one_step(run, step, best, "--best")
        asked = "best" if best else "latest" if step is None else step
        adapter = await exported_facts(backend, model, asked, best_by)
        return adapter.directory.parents[1], adapter, model.model_dump(mode="json")


def _setting(text: str) -> tuple[str, Any]:
    """`poll=2` -> ("poll", 2)."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise GavelError(f"--set {text!r} is no NAME=VALUE", "Such as --set inactive_minutes=60.")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


app = single_command(deploy)
