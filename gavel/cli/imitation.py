"""Imitation: `gavel evolve` explores, keeps the best attempts, and learns from them, in rounds; `gavel sft` learns from
the best members of judged groups, the shortest way from logs to a policy."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.interrupts import RESUME, run_interruptibly, run_to_end
from gavel.cli.named import read_attempts, scenario_named
from gavel.cli.options import (
    Assignments,
    Flag,
    Fresh,
    check_model,
    flags_of,
    prepare_judge,
    read_settings,
    run_config,
    run_flags,
    settings_command,
)
from gavel.cli.terminal import Work, say, show_line, show_progress
from gavel.cli.training import LiveReport, open_run, run_directory_of, trainable
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.loop.evaluation import Evaluation
from gavel.trainer.loop.evolve import EvolveObserver, Iteration
from gavel.trainer.loop.evolve import evolve as run_rounds
from gavel.trainer.loop.imitation import BestMembers, choose_best_members, imitate, imitation_plan
from gavel.trainer.run_config import EvolveRunConfig, ImitationConfig

FLAGS = [
    *run_flags("model", "--from-checkpoint", "lora", "judge"),
    Flag("base", "--base"),
    *flags_of("evolve", "iterations", "tasks", "attempts", "reward", "best", "above", "turn_limits"),
    *flags_of("evolve", "temperature", "evaluation_tasks", "stall_seconds"),
    Flag("train.learning_rate", "--learning-rate", "2e-4; 4e-3 for an embedded model"),
    Flag("train.epochs", "--epochs", "1; 3 for an embedded model"),
    *flags_of("train", "batch_size", "micro_batch_tokens", "gradient_checkpointing"),
    *(replace(flag, path=flag.path.replace("loop.", "evolve.")) for flag in run_flags("engine")),
    *run_flags("--tracker"),
]


def evolve(
    source: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="As for gavel train: a shipped one, file.py; or evolve.toml.")
    ],
    values: Mapping[str, Any],
    assignments: Assignments = None,
    fresh: Fresh = False,
) -> None:
    """Train a model to imitate its own best attempts, in rounds.

    Every round rolls out train tasks, keeps the attempts that succeed (or that the judge ranks first: --reward judge=1)
    and learns from them and the --base data, beginning with the base model again. --iterations 1 is rejection sampling.
    The same command goes on after a stop, and with more --iterations.
    """
    need_extra("train", "gavel evolve")
    given = run_config(source, values, assignments, flags=FLAGS, kind=EvolveRunConfig)
    config = given.resolved()
    scenario = scenario_named(config.scenario)
    config = config.model_copy(update={"evolve": config.evolve.with_reward_for(scenario.success is not None)})
    check_model(config.model, scenario)
    groups = read_attempts(config.base) if config.base else []
    base = [member for group in groups for member in group]
    if any(member.reward is not None for member in base):  # of a file with scores those that the filter chooses
        base = choose_best_members(groups, config.evolve.kept, config.evolve.threshold).trajectories
    judge = None
    if config.evolve.ranked:
        judge = prepare_judge(config.judge, scenario, run_directory_of(trainable(config, scenario.name)))
        run_interruptibly(judge.probe(replayed=False))

    async def run_evolution() -> None:
        console, model = Console(), trainable(config, scenario.name)
        async with open_run(console, model, config, judge, fresh=fresh) as run:
            chosen = config.evolve
            rewards = ", ".join(f"{name} {weight:g}" for name, weight in (chosen.reward or {}).items())
            most = f"the best {chosen.kept} by {rewards}" if chosen.kept < chosen.attempts else f"all by {rewards}"
            kept = most if chosen.threshold is None else f"{most} above {chosen.threshold:g}"
            of_base = f" · {counted(len(base), 'trajectory')} of base data" if base else ""
            going_on = f" · continuing after step {run.start}" if run.start else ""
            say(console, f"Gavel · {scenario.name} · {model.base_model} · {kept}{of_base}{going_on}")
            run.begun(config, given)
            display = _Display(console, config.evolve.iterations, run.report)
            with show_line(console, lambda: display.words):
                options = {"judge": judge, "base": base, "config": chosen, "train": config.train}
                found = await run_rounds(model, scenario, observer=display, **options)
        run.say_outcome()
        measured = [(each.success, each) for each in found if each.success is not None]
        if measured:
            success, best = max(measured, key=lambda each: each[0])
            place = f"{model.project}/{model.name}@{best.last_step}"
            say(console, f"Best: iteration {best.number}, held-out success {success:.3f}, {place}")
        run.say_end()

    run_to_end(run_evolution(), RESUME)


class _Display(Work, EvolveObserver):
    """One live line in a terminal, else a plain line for each finished part."""

    def __init__(self, console: Console, iterations: int, report: LiveReport) -> None:
        super().__init__()
        self._console, self._iterations, self._report = console, iterations, report

    def chosen(self, iteration: Iteration, chosen: BestMembers) -> None:
        mean = "" if iteration.explored_reward is None else f", mean reward {iteration.explored_reward:.2f}"
        explored = f"{counted(iteration.explored, 'attempt')} explored"
        line = f"{explored}{mean}; {iteration.kept:,} kept, {iteration.imitated:,} imitated"
        say(self._console, f"iteration {iteration.number}/{self._iterations}  {line}")

    def learned(self, iteration: Iteration, result: TrainResult) -> None:
        self.advanced(result.step - iteration.first_step, iteration.last_step - iteration.first_step)
        if not result.trained:
            say(self._console, f"step {result.step}: {result.reason}")

    def evaluated(self, number: int, evaluation: Evaluation) -> None:
        success = "" if evaluation.success is None else f"  held-out success {evaluation.success:.3f}"
        say(self._console, f"iteration {number}/{self._iterations}{success}")
        self._report.write_if_due()


evolve_app = settings_command(evolve, EvolveRunConfig, FLAGS)


_PROJECT = "sft"
SFT_FLAGS = [
    *run_flags("model", "--from-checkpoint", "lora"),
    *flags_of("choose", "best", "above"),
    *flags_of("train", "learning_rate", "epochs", "batch_size"),
    *run_flags("--micro-batch-tokens", "--gradient-checkpointing"),
    Flag("seed", "--seed"),
    *run_flags("--engine"),
]


def sft(
    values: Mapping[str, Any],
    file: Annotated[list[Path], typer.Argument(help="Judged groups, as `gavel score --out` writes them.")],
    fresh: Fresh = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be imitated; train nothing.")] = False,
) -> None:
    """Train a model to imitate the best members of judged groups.

    The same command continues after its last finished step. The run is kept under `sft/NAME` among the runs.
    """
    config = read_settings(ImitationConfig, values, SFT_FLAGS)
    best, above = config.choose.best, config.choose.above
    chosen = choose_best_members(read_attempts(file), best, above)
    if not chosen.scored:
        raise GavelError(
            "no trajectory of the file has a score.", "Judge it first: gavel score FILE --judge … --out judged.jsonl"
        )
    if not chosen.trajectories:
        raise GavelError(f"no score of the file is above {above}.", "Choose a lower --above.")
    counts = (chosen.not_best, chosen.too_low, chosen.unscored)
    reasons = zip(counts, ("not among their group's best", "scored too low", "without a score"), strict=True)
    told = ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)
    whole = f"{len(chosen.trajectories):,} of {counted(chosen.scored + chosen.unscored, 'trajectory')}"
    typer.echo(f"Imitates {whole}{told and f' ({told})'}.")
    if chosen.alike:
        typer.echo(
            f"{chosen.alike:,} of {counted(chosen.groups, 'group')} had no best member, because all their scores are "
            f"alike: the first {best} in the file counts. Another judge (gavel score FILE --judge …) "
            "or a threshold (--above) chooses better.",
            err=True,
        )
    if dry_run:
        return
    need_extra("train", "gavel sft")
    console = Console()
    steps = len(imitation_plan(len(chosen.trajectories), config.train.epochs, config.train.batch_size, config.seed))
    model = trainable(config, _PROJECT).model_copy(update={"name": config.run_name})
    said = ""

    async def run_imitation() -> None:
        async with open_run(console, model, config, fresh=fresh) as run:

            def stepped(result: TrainResult) -> None:
                nonlocal said
                run.begun()
                loss = result.metrics.get("loss")
                said = str(result.reason) if loss is None else f"loss {loss:.3f}"
                if not console.is_terminal or loss is None:
                    say(console, f"step {result.step}/{steps}  {said}")
                advance()
                run.report.write_if_due()

            with show_progress(console, "learning", steps - run.start, "steps", lambda: said) as advance:
                await imitate(model, chosen.trajectories, config.train, seed=config.seed, stepped=stepped)
        if run.start >= steps:
            say(console, f"The run was finished after step {run.start}.")
        run.say_outcome()
        run.say_end()

    run_to_end(run_imitation(), RESUME)


sft_app = settings_command(sft, ImitationConfig, SFT_FLAGS)
