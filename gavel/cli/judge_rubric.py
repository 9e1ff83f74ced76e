"""`gavel judge rubric`: a judge model drafts a rubric, to be read and edited by its owner."""

from pathlib import Path
from typing import Annotated

import typer

from gavel.base.errors import GavelError
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import single_command


def rubric(
    description: Annotated[str, typer.Argument(help="The agent's job, in a sentence or more.")],
    model: Annotated[str | None, typer.Option(help="Judge model. Default: GAVEL_JUDGE_MODEL.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also writes it to a file, for --rubric @FILE.")] = None,
    criteria: Annotated[bool, typer.Option("--criteria", help="Weighted criteria (JSON) instead of a text.")] = False,
) -> None:
    """Draft a rubric for a job with a judge model."""
    from gavel.cli.settings import Settings
    from gavel.judge.drafts import draft_rubric
    from gavel.llm.client import Client
    from gavel.llm.prices import prices_from_environment

    if out is not None and out.exists():
        raise GavelError(f"{out} is there already.", "Choose another file with --out, or move this one away.")
    client = Client(model or Settings.read().judge, prices=prices_from_environment())
    text = run_interruptibly(draft_rubric(client, description, criteria=criteria)).dump()
    typer.echo(text)  # before the file, which may fail: the draft was paid for
    if out is None:
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise GavelError(f"{out} cannot be written: {error}", "Copy the rubric from above.") from error
    typer.echo(f"Written to {out}. Read and edit it, then: gavel score FILE --rubric @{out}", err=True)


app = single_command(rubric)
