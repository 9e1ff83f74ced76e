"""`gavel deploy`, `undeploy` and `deployments`: a run's checkpoint served by a host, and the list of what is served."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import BackendUrl, of_this_machine, one_step, run_at
from gavel.cli.terminal import print_table, say
from gavel.trainer.runs.run_directory import read_description, runs_root, split_step

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
    from gavel.trainer.deploy.deploy import deploy as serve

    options = dict(map(_setting, settings or ()))
    if backend_url is None:
        directory, adapter, description = _found_here(run, best, best_by)
    else:
        directory, adapter, description = asyncio.run(_fetched(backend_url, run, best, best_by))
    deployed = asyncio.run(
        serve(
            directory,
            adapter,
            host,
            wait=wait,
            description=description if smoke_test else None,
            deadline=deadline,
            report=lambda line: typer.echo(line, err=True),
            options=options,
        )
    )
    typer.echo(f"{deployed.id}  {deployed.base_url}  {deployed.model_id}")
    typer.echo(deployed.stop_hint, err=True)


def _found_here(run: str, best: bool, best_by: str) -> "_Checkpoint":
    from gavel.trainer.deploy.deploy import facts_of_run

    with of_this_machine(run):
        directory, step = split_step(run)
    one_step(run, step, best, "--best")
    adapter = facts_of_run(directory, "best" if best else "latest" if step is None else step, best_by)
    return directory, adapter, read_description(directory / "model.json")


async def _fetched(url: str, run: str, best: bool, best_by: str) -> "_Checkpoint":
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


def undeploy(
    deployment: Annotated[
        str, typer.Argument(help="As `gavel deployments` lists it; or a run (desk/qwen3-8b), for all of its own.")
    ],
) -> None:
    """Stop a deployment and remove what was made for it; a half-made one too. Doing so again changes nothing.

    Of a run with several deployments each is removed, also where another one cannot be.
    """
    from gavel.trainer.deploy.deploy import undeploy as remove
    from gavel.trainer.deploy.record import find_records

    failed: list[tuple[str, GavelError]] = []
    for record in find_records(runs_root(), deployment, by_id=True):
        try:
            asyncio.run(remove(record, report=typer.echo))
        except GavelError as error:
            failed.append((record.id, error))
    if failed:
        told = "; ".join(f"{name} is not removed: {error.message}" for name, error in failed)
        raise GavelError(told, "\n       ".join(dict.fromkeys(error.remedy for _, error in failed)))


def deployments(
    run: Annotated[str | None, typer.Argument(help="Of this run alone. Default: of all runs.")] = None,
    status: Annotated[bool, typer.Option("--status", help="Ask each host what it serves now.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Those that were removed, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as a JSON list.")] = False,
) -> None:
    """List deployments with their state, their smoke test, and what they cost."""

    from gavel.trainer.deploy.host import explained, open_host
    from gavel.trainer.deploy.record import find_records

    found = [record for record in find_records(runs_root(), run) if everything or record.state != "undeployed"]
    if as_json:
        typer.echo(json.dumps([record.model_dump(mode="json") for record in found], indent=1))
        return
    console = Console()
    if not found:
        console.print("Nothing is deployed. Deploy a run: gavel deploy RUN HOST.")
        return
    rows: list[tuple[str, ...]] = []
    costs: list[str] = []
    for record in found:
        state = record.state
        try:
            host = open_host(record.address, **record.options)
            if record.state != "undeployed":
                costs.append(f"{record.id}: {host.costs(record)}")
            if status and record.state != "undeployed":
                with explained(host):
                    state = f"{state}, {asyncio.run(host.status(record))}"
        except GavelError as error:
            state = f"{state}, {error.message}"
        name = f"{record.project}/{record.model}@{record.step}"
        model = str(record.deployed.get("model_id", "–"))
        rows.append((record.id, name, state, model, record.smoke_test or "–"))
    print_table(console, ("deployment", "run", "state", "model", "smoke test"), rows)
    for line in costs:
        say(console, line)


app = single_command(deploy)
undeploy_app = single_command(undeploy)
deployments_app = single_command(deployments)
