"""`gavel judge golden`: a regression test of a judge and its prompts on groups of known order.

Replies are stored on a cassette, so a repeated run requests only what a change of prompts changed. The scores of the
first run are recorded beside the cassette, and later runs name each verdict that changed.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel, TypeAdapter, ValidationError

from gavel.base.errors import GavelError
from gavel.base.files import write_atomically
from gavel.base.text import counted
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import single_command

if TYPE_CHECKING:
    from gavel.judge.audit.golden import ChangedVerdict, GoldenResult


class _Record(BaseModel):
    """One judge's scores of one group, to compare later runs with."""

    prompt_ids: list[str]
    scores: dict[str, float]
    """By member."""


_Records = dict[str, dict[str, _Record]]
"""By judge and group."""


def golden(
    judge: Annotated[str | None, typer.Option(help="Judge model. Default: GAVEL_JUDGE_MODEL.")] = None,
    rubric: Annotated[str | None, typer.Option(help="What good work is: a text, or @FILE.")] = None,
    groups: Annotated[Path | None, typer.Option(help="Your own golden set (JSON). Default: the shipped one.")] = None,
    cassette: Annotated[
        Path | None,
        typer.Option(help="SQLite file that stores the replies. Default: golden.sqlite among the runs."),
    ] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Use stored replies only; call no model.")] = False,
    record: Annotated[bool, typer.Option("--record", help="Compare later runs with this one.")] = False,
) -> None:
    """Check a judge and its prompts on groups of known order, and name the verdicts that changed."""
    from gavel.cli.settings import STAND_IN, Settings
    from gavel.judge.audit.golden import SHIPPED, changed_prompts, changed_verdicts, check_golden, load_golden
    from gavel.judge.config import read_text_option
    from gavel.judge.errors import JudgeError
    from gavel.judge.judge import Judge
    from gavel.llm.cassette import Cassette

    settings = Settings.read()
    model = judge or settings.judge
    if model == STAND_IN:
        raise JudgeError(
            "the stand-in checks rules of a rubric and reads no answers, so a golden set says nothing of it.",
            "Name a judge model: --judge openai/gpt-5-mini, or GAVEL_JUDGE_MODEL.",
        )
    path = cassette or settings.runs / "golden.sqlite"
    tape = Cassette(path, "replay" if replay else "cache")
    beside = path.with_name(f"{path.name}.json")
    records = _read_records(beside)
    models = [name.strip() for name in model.split(",")] if model else None
    engine = Judge(models, rubric=read_text_option(rubric, "rubric"), cassette=tape)
    name = " + ".join(engine.names)
    results = run_interruptibly(check_golden(engine, load_golden(groups or SHIPPED)))
    tape.close()
    _print_results(results, name)
    _print_learnt(results)
    before = records.get(name, {})
    found = list(changed_verdicts(results, {group: old.scores for group, old in before.items()}))
    if before:
        old_ids = set(chain.from_iterable(old.prompt_ids for old in before.values()))
        _print_changes(found, changed_prompts(old_ids, chain.from_iterable(result.prompt_ids for result in results)))
    if replay and tape.misses:
        questions = tape.misses + sum(result.cached_calls for result in results)
        raise JudgeError(
            f"changed prompt: {tape.misses} of {questions} questions are not on the cassette {path}.",
            "Ask them: the same command without --replay.",
        )
    if failed := [result for result in results if not result.scores]:
        raise JudgeError(
            f"{len(failed)} of {counted(len(results), 'group')} without a judgement: {failed[0].reason}",
            "Nothing is recorded; try again: what was answered is not asked twice.",
        )
    if (wrong := sum(not each.is_right for each in found)) and not record:
        raise JudgeError(
            f"{counted(wrong, 'verdict')} turned from right to wrong since the record.",
            "Mend the prompt, or accept what the judge says by now: --record.",
        )
    fresh = {
        result.group.name: _Record(prompt_ids=list(result.prompt_ids), scores=dict(result.scores))
        for result in results
        if record or result.group.name not in before
    }
    if fresh:
        _write_records(beside, records | {name: before | fresh})
        are = "is" if len(fresh) == 1 else "are"
        typer.echo(f"{counted(len(fresh), 'group')} {are} recorded in {beside}: later runs are compared with this one.")


def _read_records(path: Path) -> _Records:
    try:
        return TypeAdapter(_Records).validate_json(path.read_bytes()) if path.exists() else {}
    except (OSError, ValidationError) as error:
        raise GavelError(f"the record {path} cannot be read: {error}", "Delete it; the next run makes one.") from error


def _write_records(path: Path, records: _Records) -> None:
    try:
        write_atomically(path, TypeAdapter(_Records).dump_json(records, indent=2))
    except OSError as error:
        raise GavelError(f"{path} cannot be written: {error}", "Choose another place with --cassette.") from error


def _print_results(results: "Sequence[GoldenResult]", judge: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, pad_edge=False)
    table.add_column("group", overflow="fold")
    table.add_column("right", justify="right", no_wrap=True)
    table.add_column("as it should be", overflow="fold")
    for result in results:
        right = f"{result.right}/{len(result.group.pairs)}" if result.scores else "–"
        table.add_row(Text(result.group.name), right, Text(_standing(result)))
    judged = [result for result in results if result.scores]
    costs = [result.cost_usd for result in results if result.calls]
    known = [cost for cost in costs if cost is not None]
    account = [
        f"{sum(r.right for r in judged)} of {counted(sum(len(r.group.pairs) for r in judged), 'verdict')} right",
        f"{len(judged)} of {counted(len(results), 'group')} judged",
        f"judge {judge}",
        f"{counted(sum(r.calls for r in results), 'call')}, "
        f"{counted(sum(r.cached_calls for r in results), 'reply')} from the cassette",
        f"{sum(known):.4f} USD" if len(known) == len(costs) else "cost unknown (set GAVEL_PRICES)",
    ]
    console = Console()
    console.print(table)
    console.print(Text(" · ".join(account)))


def _print_learnt(results: "Sequence[GoldenResult]") -> None:
    """Prints what these groups tell of the judge's noise and of the weights of a jury, as settings."""
    from gavel.judge.audit.golden import golden_scores, jury_weights
    from gavel.judge.audit.votes import fit_noise_prior

    prior = fit_noise_prior(result.judged for result in results if result.judged is not None and result.scores)
    if prior is not None:
        typer.echo(f"Noise of its votes: noise_prior = {{variance = {prior.variance:.5f}, df = {prior.df:.1f}}}")
    weights = jury_weights(golden_scores(results))
    if len(weights) > 1:
        typer.echo("Weights: " + " · ".join(f"{model} {weight:.2f}" for model, weight in weights.items()))


def _standing(result: "GoldenResult") -> str:
    """`careful 0.90 > hasty 0.20 · lazy 0.10`: the scores in the correct order, or the reason why there are none."""
    if not result.scores:
        return shorten(result.reason, 90, placeholder=" …")
    tiers = [" · ".join(f"{name} {result.scores[name]:.2f}" for name in tier) for tier in result.group.order]
    return " > ".join(tiers)


def _print_changes(found: "Sequence[ChangedVerdict]", prompts: Sequence[str]) -> None:
    count = f"{counted(len(found), 'verdict')} turned"
    what = f"changed {', '.join(prompts)}" if prompts else "no prompt changed"
    typer.echo(f"Since the record: {what}; {count}.")
    for each in found:
        (was_better, was_worse), (better, worse) = each.before, each.after
        typer.echo(
            f"  {'right' if each.is_right else 'WRONG'} by now: {each.group}: {each.better} above {each.worse} "
            f"(was {was_better:.2f} and {was_worse:.2f}, is {better:.2f} and {worse:.2f})"
        )


app = single_command(golden)
