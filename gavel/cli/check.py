"""`gavel check`: plays two episodes of a scenario, and shows what the agent does, and what the judge sees and says."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_options import Flag, with_options
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import ENGINE_FLAGS, JUDGE_FLAGS, Assignments, Source, announce_stand_in, run_config
from gavel.trainer.run_config import RunConfig

_FLAGS = [
    Flag("loop.group_size", "--group-size"),
    Flag("loop.tasks_per_step", "--tasks"),
    Flag("loop.steps", "--steps"),
    *(flag for flag in ENGINE_FLAGS if flag.name == "--max-tokens"),
    *(replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS if flag.name != "--cassette"),
]


def check(
    source: Source,
    values: Mapping[str, Any],
    assignments: Assignments = None,
    agent: Annotated[
        str | None,
        typer.Option(
            help="Who plays: a LiteLLM model such as openai/gpt-5-mini, or `players`: a shipped scenario's own expert "
            "and fool. Default: two scripts without a model."
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Id of the task to play. Default: the first to be trained on.")
    ] = None,
    prompt: Annotated[bool, typer.Option("--prompt/--no-prompt", help="Show the judge's prompt, too.")] = True,
) -> None:
    """Play two episodes of a scenario before anything is trained.

    Shows both transcripts, the judge's prompt and what it says, what was truncated, and what a step would cost.
    Without --agent, one script calls every tool once and the other only answers. The exit status is 1 when an episode
    failed, or the judge gave no scores.
    """
    config = run_config(source, values, assignments, flags=_FLAGS).resolved()
    scenario = scenario_named(config.scenario)
    judge = config.judge.build(scenario.rubric)
    announce_stand_in(judge.names)
    from gavel.cli.check_session import run_check

    well = run_interruptibly(run_check(scenario, judge, config.loop, agent=agent, task=task, show_prompt=prompt))
    raise typer.Exit(0 if well else 1)


app = single_command(with_options(check, RunConfig, _FLAGS))
