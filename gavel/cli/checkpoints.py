"""`gavel export`, `push`, `pull`, `deploy`, `deployments` and `undeploy`: what becomes of a run's checkpoints.

`gavel export trajectories` writes what the run's agent did. Export, push and deploy take a run of this machine, or with
--backend-url one of a backend.
"""

import asyncio
import json
import shlex
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import find_run, remote_backend
from gavel.cli.options import read_pairs
from gavel.cli.terminal import print_table, say
from gavel.scenarios.formats.export import MARGIN, export_file, export_formats, stored_groups
from gavel.scenarios.formats.exported import StoredGroup
from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.config import ExportDtype, ExportForm
from gavel.trainer.runs.run_directory import (
    NamedRunError,
    find_checkpoint,
    read_description,
    run_names,
    run_path,
    runs_root,
    split_step,
)
from gavel.trainer.runs.stores import open_store, pull_checkpoint, push_checkpoint, split_place

if TYPE_CHECKING:
    from gavel.trainer.backends.remote.client import RemoteBackend
    from gavel.trainer.deploy.deploy import Step
    from gavel.trainer.model_spec import TrainableSpec

Found = TypeVar("Found")
RunName = Annotated[
    str, typer.Argument(help="A run as `gavel runs` lists it (desk/clerk); @12 is its step 12, @0 what it began with.")
]
BackendUrl = Annotated[
    str | None,
    typer.Option(
        help="The run is one of the `gavel backend` there, as with gavel train: its address (GAVEL_BACKEND_KEY is its "
        "key), or sky://CLUSTER."
    ),
]


Work = Callable[["RemoteBackend", "TrainableSpec", int | None], Coroutine[Any, Any, Found]]


def at_backend(url: str, named: str, work: Work[Found]) -> Found:
    """What `work` makes of the backend, its run `project/name`, and the step named with `@12`. Raises `GavelError`."""
    (text, step), *_ = reversed(run_names(named))
    project, slash, name = text.partition("/")
    if not slash:
        raise GavelError(f"{named!r} names no run of a backend", "Name project and run: desk/clerk, or desk/clerk@12.")

    async def open_and_work() -> Found:
        async with await remote_backend(url) as backend:
            return await work(backend, await backend.find(project, name), step)

    return asyncio.run(open_and_work())


def run_here(named: str) -> tuple[Path, int | None]:
    """The directory of a run, and the step named with `@12`. Raises `GavelError`."""
    try:
        return split_step(named)
    except NamedRunError as error:
        raise GavelError(
            f"there is no run {named!r} in {runs_root()}",
            "Name one as `gavel runs` lists it (desk/clerk, desk/clerk@12). One that was trained with --backend-url is "
            "there alone: give the same --backend-url.",
        ) from error


def export(
    run: RunName,
    form: Annotated[
        ExportForm, typer.Option(help="merged: a plain model; adapter: the PEFT adapter alone.")
    ] = "merged",
    dtype: Annotated[ExportDtype, typer.Option(help="Of merged weights; auto: as the base's own files.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Default: a directory under `exports` of the run.")] = None,
    backend_url: BackendUrl = None,
) -> None:
    """Write a run's policy as a plain model directory, with its adapter merged.

    Nothing is written over, and the directory appears only when it is whole. A backend exports a run of its own, and
    the directory is fetched.

    gavel export trajectories … writes what an agent did, for other programs.
    """
    if backend_url is not None:
        path = at_backend(backend_url, run, lambda backend, model, step: backend.export(model, form, dtype, step, out))
    else:
        need_extra("train", "gavel export")
        from gavel.trainer.backends.run_export import export_run

        directory, step = run_here(run)
        path = export_run(directory, form, dtype=dtype, step=step, out=out)
    typer.echo(path)  # alone on stdout, for scripts
    if form == "merged":
        told = f"This directory is a plain model of transformers. Serve it: vllm serve {path}"
    else:
        told = f'This directory is a PEFT adapter. Load it over its base: PeftModel.from_pretrained(base, "{path}")'
    typer.echo(told, err=True)


_STORE = ".jsonl.zst"
if TYPE_CHECKING:
    _Format = str
else:
    _Format = Literal[tuple(export_formats())]  # those of installed integrations, too


def trajectories(
    source: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run, or a file that `gavel score` reads.")],
    form: Annotated[_Format, typer.Option("--format", help="docs/export.md says what each of them holds.")],
    out: Annotated[str, typer.Option("--out", "-o", help="File to write; otel: also the http address of a collector.")],
    split: Annotated[str | None, typer.Option(help="Of a run: train, held_out, … Default: all.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Of a run. Default: all.")] = None,
    margin: Annotated[
        float | None, typer.Option(min=0.0, help=f"dpo: least difference of a pair's scores. Default: {MARGIN}.")
    ] = None,
    above: Annotated[float | None, typer.Option(help="sft: what the score of a conversation must exceed.")] = None,
) -> None:
    """Write trajectories in another program's format; what it cannot hold is counted and named.

    Nothing is written over, and the file appears only when it is whole.
    """
    for value, name, of in ((margin, "--margin", "dpo"), (above, "--above", "sft")):
        if value is not None and form != of:
            raise GavelError(f"{name} belongs to --format {of}.", f"Leave {name} out.")
    margin = MARGIN if margin is None else margin
    run = find_run(source)
    if run is not None:
        groups = _read_run_groups(run, split, step)
        model = str(read_description(run / "model.json")["name"])
        told = export_file(groups, form, out, model=model, margin=margin, above=above)
    else:
        if split is not None or step is not None:
            raise GavelError(f"{source} is no run, so it has no splits and steps.", "Leave --split and --step out.")
        if not Path(source).exists() and source != "-":
            raise GavelError(
                f"there is no run and no file {source}.", "Name a run as `gavel runs` lists it, or a file."
            )
        reading = read_file(Path(source))
        typer.echo(reading.summary, err=True)
        for note in reading.notes:
            if note.startswith("left out"):  # the others tell what a judge should compare
                typer.echo(note, err=True)
        told = export_file(stored_groups(reading.groups), form, out, margin=margin, above=above)
    for note in told.notes:
        typer.echo(note, err=True)
    typer.echo(told.summary)


def _read_run_groups(run: Path, split: str | None, step: int | None) -> Iterator[StoredGroup]:
    """The groups of a run's stores, by split and step. Raises `GavelError` where there are none."""
    root = run / "trajectories"
    found = [
        (path, path.parent.relative_to(root).as_posix(), int(path.name.removesuffix(_STORE)))
        for path in sorted(root.rglob(f"*{_STORE}"))
        if path.name.removesuffix(_STORE).isdecimal()
    ]
    if not found:
        raise GavelError(f"{run} has no trajectories yet.", "Train or evaluate it first.")
    chosen = [each for each in found if split in (None, each[1]) and step in (None, each[2])]
    if not chosen:
        splits = ", ".join(f"{name} (steps {_steps(found, name)})" for name in dict.fromkeys(each[1] for each in found))
        raise GavelError(f"{run} has no trajectories of that split and step.", f"It has {splits}.")
    return (
        StoredGroup(group, index, name, number)
        for path, name, number in chosen
        for index, group in enumerate(TrajectoryStore(path).read())
    )


def _steps(found: list[tuple[Path, str, int]], name: str) -> str:
    steps = [each[2] for each in found if each[1] == name]
    return str(steps[0]) if len(steps) == 1 else f"{min(steps)} to {max(steps)}"


def push(
    run: RunName,
    address: Annotated[str, typer.Argument(help="s3://bucket/prefix, hf://owner/repository, or a directory.")],
    backend_url: BackendUrl = None,
) -> None:
    """Copy a run's checkpoint to a store or a directory; the newest, unless a step is named.

    A push that was cut off goes on where it was. A checkpoint counts there when all of it has arrived. That of a
    backend is pushed from there, with the credentials of there.
    """
    if backend_url is not None:

        async def push_there(backend: "RemoteBackend", model: "TrainableSpec", step: int | None) -> str:
            return await backend.push(model, address, backend.step(model) if step is None else step)

        place, stored = run.partition("@")[0], at_backend(backend_url, run, push_there)
    else:
        directory, _ = run_here(run)
        place = f"{directory.parent.name}/{directory.name}"
        stored = push_checkpoint(directory, int(find_checkpoint(run, runs_root()).name), open_store(address), place)
    typer.echo(stored)  # alone on stdout, for scripts
    told = f"The checkpoint is kept there. To fetch it on another machine: gavel pull {address.rstrip('/')}/{place}"
    typer.echo(told, err=True)


def pull(
    address: Annotated[str, typer.Argument(help="A store's address, as of `gavel push`, and /project/name.")],
    step: Annotated[int | None, typer.Option(min=0, help="Default: the newest.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the run here. Default: as it is there.")] = None,
) -> None:
    """Copy a checkpoint that was pushed into a run directory here, from where training and export go on."""
    home, project, last = split_place(address)
    key = project, name or last
    found = pull_checkpoint(open_store(home), f"{project}/{last}", step, runs_root(), key)
    typer.echo(run_path(runs_root(), *key) / "checkpoints" / f"{found:06d}")
    run = "/".join(key)
    told = f"Step {found} of the run {run} is here now. As a model for other programs: gavel export {shlex.quote(run)}"
    typer.echo(told, err=True)


def deploy(
    run: RunName,
    host: Annotated[str, typer.Argument(help="vllm:http://HOST:PORT, together, fireworks, wandb, huggingface.")],
    best: Annotated[bool, typer.Option("--best", help="The step with the highest --best-by, not the newest.")] = False,
    best_by: Annotated[str, typer.Option(help="split/metric of metrics.jsonl.")] = "held_out/success",
    smoke_test: Annotated[
        bool, typer.Option(help="Prove by a few answers what is served; loads the base here.")
    ] = True,
    deadline: Annotated[float, typer.Option(min=1, help="Seconds to wait until it serves.")] = 3600.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: option of the host. Repeatable.")
    ] = None,
    backend_url: BackendUrl = None,
) -> None:
    """Serve a run's checkpoint at a host, prove what it serves, and say what it costs.

    The same command after a crash goes on where it was. `gavel deployments` lists, `gavel undeploy` removes.
    The adapter of a backend's run is fetched, and deployed from here.
    """
    need_extra("train", "gavel deploy")
    from gavel.trainer.deploy.deploy import deploy as serve
    from gavel.trainer.deploy.deploy import exported_facts, facts_of_run
    from gavel.trainer.deploy.host import tell_costs

    options = read_pairs("--set", settings or ())

    def chosen(step: int | None) -> "Step":
        if step is not None and best:
            raise GavelError(f"{run} names a step, and --best another", "Leave one of them out.")
        return "best" if best else "latest" if step is None else step

    if backend_url is None:
        directory, step = run_here(run)
        adapter = facts_of_run(directory, chosen(step), best_by)
        description = read_description(directory / "model.json")
    else:

        async def fetch(backend: "RemoteBackend", model: "TrainableSpec", step: int | None) -> tuple[Any, ...]:
            return await exported_facts(backend, model, chosen(step), best_by), model.model_dump(mode="json")

        adapter, description = at_backend(backend_url, run, fetch)
        directory = adapter.directory.parents[1]
    told = {"report": partial(typer.echo, err=True), "description": description if smoke_test else None}
    deployed = asyncio.run(serve(directory, adapter, host, deadline=deadline, options=options, **told))
    typer.echo(f"{deployed.id}  {deployed.base_url}  {deployed.model_id}")
    typer.echo(tell_costs(deployed.host, deployed.record), err=True)


def undeploy(
    deployment: Annotated[str, typer.Argument(help="As `gavel deployments` lists it; or a run, for all of its own.")],
) -> None:
    """Stop a deployment and remove what was made for it; a half-made one too. Doing so again changes nothing.

    Of a run with several deployments each is removed, also where another one cannot be.
    """
    from gavel.trainer.deploy.deploy import undeploy as remove
    from gavel.trainer.deploy.record import find_records

    failed: list[tuple[str, GavelError]] = []
    for record in find_records(runs_root(), deployment):
        try:
            asyncio.run(remove(record, report=typer.echo))
        except GavelError as error:
            failed.append((record.id, error))
    if failed:
        told = "; ".join(f"{name} is not removed: {error.message}" for name, error in failed)
        raise GavelError(told, "\n       ".join(dict.fromkeys(error.remedy for _, error in failed)))


def deployments(
    run: Annotated[str | None, typer.Argument(help="Of this run or id alone. Default: of all runs.")] = None,
    status: Annotated[bool, typer.Option("--status", help="Ask each host what it serves now.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Those that were removed, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as a JSON list.")] = False,
) -> None:
    """List deployments with their state, their smoke test, and what they cost."""
    from gavel.trainer.deploy.deploy import look_up
    from gavel.trainer.deploy.host import open_host, tell_costs
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
                costs.append(f"{record.id}: {tell_costs(host, record)}")
                state = f"{state}, {asyncio.run(look_up(host, record))}" if status else state
        except GavelError as error:
            state = f"{state}, {error.message}"
        name = f"{record.adapter.project}/{record.adapter.name}@{record.adapter.step}"
        model = str(record.deployed.get("model_id", "–"))
        rows.append((record.id, name, state, model, record.smoke_test or "–"))
    print_table(console, ("deployment", "run", "state", "model", "smoke test"), rows)
    for line in costs:
        say(console, line)


export_app = single_command(export, {"trajectories": trajectories})
push_app, pull_app = single_command(push), single_command(pull)
deploy_app, undeploy_app, deployments_app = map(single_command, (deploy, undeploy, deployments))
