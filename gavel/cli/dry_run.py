"""`--dry-run` of trainings and evaluations: whether they would begin, then what models may cost.

The lengths that are assumed are those of the episodes that `gavel check` played, where it was run.
"""

import contextlib
import json
import math
import shutil
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gavel.base.extras import missing_parts
from gavel.base.text import counted
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.terminal import print_warning
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.llm.errors import MissingKeyError
from gavel.llm.prices import price, prices_from_environment
from gavel.scenarios.mixture import Mixture
from gavel.trainer.config import LoopConfig
from gavel.trainer.run_config import RunConfig

if TYPE_CHECKING:
    from gavel.judge.estimate import Estimate
    from gavel.scenarios.scenario import Scenario

_ASSUMED_CONTEXT = 4096
"""Tokens that are assumed where nobody knows better."""


def print_run_estimate(judge: Judge | None, loop: LoopConfig, member_tokens: dict[str, int]) -> None:
    """What `print_run_estimates` prints, of one run."""
    print_run_estimates([("", judge, loop, 1)], member_tokens)


def print_run_estimates(
    estimates: Sequence[tuple[str, Judge | None, LoopConfig, int]], member_tokens: dict[str, int]
) -> None:
    """Prints calls, tokens and dollars: for each name, those of its judge in so many runs of its loop. Asks nothing.

    `member_tokens`: lengths to assume, by label. Raises `JudgeError` before anything is printed; for a key that is not
    set, which the estimate does not need, after it.
    """
    judges = [judge for _, judge, _, _ in estimates if judge is not None]
    with key_told_at_the_end(judges):
        for name, judge, loop, runs in estimates:
            if name:
                typer.echo(name)
            _print_run_estimate(judge, loop, member_tokens, runs)
        if judges:
            free = "groups of identical rollouts, and replies on a cassette, cost nothing"
            typer.echo(f"Repeated calls come on top; {free}.")


def episodes_estimate(model: str, episodes: int, turns: int, tokens: int) -> "Estimate":
    """What so many episodes of an API model would take if each had all `turns`, and `tokens` tokens at its end."""
    from gavel.judge.estimate import Estimate

    prompts, replies = episodes * turns * tokens // 2, episodes * tokens // 2
    per_million = price(model, prices_from_environment())
    if per_million is None:
        return Estimate(episodes * turns, prompts, replies, unpriced=(model,))
    usd = (prompts * per_million[0] + replies * per_million[1]) / 1e6
    return Estimate(episodes * turns, prompts, replies, usd)


@contextlib.contextmanager
def key_told_at_the_end(judges: Iterable[Judge]) -> Generator[None]:
    """Around an estimate. Raises what is wrong with a judge before it, and a key that is not set after it."""
    missing_key = None
    for judge in judges:
        try:
            judge.check()
        except JudgeError as error:
            if not isinstance(error.__cause__, MissingKeyError):
                raise
            missing_key = missing_key or error
    yield
    if missing_key is not None:
        raise missing_key


def _print_run_estimate(judge: Judge | None, loop: LoopConfig, member_tokens: dict[str, int], runs: int) -> None:
    if judge is None:
        typer.echo("The reward gives the judge no weight: it is not asked.")
        return
    from gavel.judge.estimate import estimate_run

    groups = runs * loop.steps * loop.tasks_per_step
    steps = f"{counted(loop.steps, 'step')} of " if loop.steps > 1 else ""
    typer.echo(f"{steps}{counted(loop.tasks_per_step, 'group')} of {loop.group_size}. Nothing was asked.")
    for label, tokens in member_tokens.items():
        estimate = run_interruptibly(estimate_run(judge, groups, loop.group_size, tokens))
        typer.echo(f"{label} ({counted(tokens, 'token')} each): {estimate.words}")
    if loop.refill:
        further = runs * loop.steps * math.floor(loop.refill * loop.tasks_per_step)
        typer.echo(f"At most {counted(further, 'further group')} in place of those without a signal come on top.")


def check_run(
    config: RunConfig, scenario: "Scenario | Mixture", judge: Judge | None, root: Path, *, fresh: bool = False
) -> None:
    """Raises `GavelError` where the run would not begin: base model, starting checkpoint, directory below `root`.

    Asks the hub for a model that is not here. Leaves nothing behind.
    """
    if config.backend.url is not None:
        if fresh:
            from gavel.cli.run_model import check_fresh_is_here

            check_fresh_is_here(config.backend, fresh)
        return
    from gavel.trainer.runs.run_directory import PULLED, RunDirectory

    directory = RunDirectory(root, scenario.name, config.model.name or config.model.base_model, config.backend.tracker)
    try:
        if not fresh:
            check_begun(config, scenario, judge, directory.path)
        if missing_parts("train"):
            typer.echo("Base model and starting checkpoint were not looked for: that needs the extra train.", err=True)
            return
        from gavel.cli.run_model import trainable
        from gavel.trainer.backends.run_start import RunStart
        from gavel.trainer.backends.training_run import DESCRIBED

        model = trainable(config, scenario)
        check_base(model.base_model)
        if not fresh:
            directory.check(model.model_dump(include=DESCRIBED))
        RunStart(model, directory, fresh=fresh)
    finally:
        shutil.rmtree(directory.path / PULLED, ignore_errors=True)
        directory.close()
        directory.discard_if_new()


def check_base(base_model: str) -> None:
    """Raises `GavelError` for a base model that is not here and that the hub does not have."""
    from gavel.trainer.policy.policy import check_exists, load_config, source_of

    (load_config if Path(source_of(base_model)).is_dir() else check_exists)(base_model)


def check_begun(config: RunConfig, scenario: "Scenario | Mixture", judge: Judge | None, directory: Path) -> None:
    """Raises `RunDirectoryError` where the run in `directory` was begun as another experiment."""
    from gavel.trainer.loop.experiment import described_run
    from gavel.trainer.runs.run_directory import check_description

    check_description(directory, described_run(Mixture.of(scenario), judge, config.loop, config.train))


def keep_lengths(scenario: "Scenario | Mixture", tokens: int, players: str) -> None:
    """Keeps how long the longest episode was that `gavel check` played, for later dry runs. `players`: by whom."""
    file = _kept(scenario)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"tokens": tokens, "players": players}) + "\n", encoding="utf-8")
    except OSError as error:
        print_warning(f"the lengths were not kept for --dry-run: {file} cannot be written: {error.strerror or error}")


def seen_lengths(scenario: "Scenario | Mixture", max_context: int | None) -> dict[str, int]:
    """Lengths of a rollout to assume, by label; of several scenarios, those of the longest."""
    try:
        seen = [json.loads(_kept(each).read_text(encoding="utf-8")) for each in Mixture.of(scenario)]
        longest = max(seen, key=lambda each: each["tokens"])
        return {f"As long as the episodes of `gavel check`, played by {longest['players']}": int(longest["tokens"])}
    except (OSError, ValueError, KeyError, TypeError):  # it was not run here, or another program wrote the file
        longest = max_context or _ASSUMED_CONTEXT
        label = "At most, every rollout at --max-context" if max_context else "With long rollouts; longer ones may fit"
        return {label: longest, "At an eighth of that (`gavel check` tells how long they are)": max(longest // 8, 1)}


def _kept(scenario: "Scenario | Mixture") -> Path:
    from gavel.trainer.runs.run_directory import run_path, runs_root

    return run_path(runs_root(), scenario.name, "x").parent / "check.json"
