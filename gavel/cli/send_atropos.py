"""`gavel send-atropos`: a scenario as an environment of Atropos, for any server of its trajectory API."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gavel.base.text import counted
from gavel.cli.interrupts import run_interruptibly, run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_options import Flag, with_options
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import JUDGE_FLAGS, Assignments, announce_stand_in, check_stand_in, run_config
from gavel.trainer.run_config import RunConfig

FLAGS = [
    *(replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS),
    Flag("loop.reward", "--reward", "judge=1"),
    Flag("loop.group_size", "--group-size"),
    Flag("loop.temperature", "--temperature"),
    Flag("loop.max_tokens", "--max-tokens"),
    Flag("loop.concurrency", "--concurrency"),
    Flag("loop.seed", "--seed"),
]


def send_atropos(
    source: Annotated[
        str,
        typer.Argument(metavar="SCENARIO|FILE", help="A scenario to play, or a file of judged groups with tokens."),
    ],
    values: Mapping[str, Any],
    url: Annotated[str, typer.Option(help="Address of the Atropos API. GAVEL_ATROPOS_KEY is shown to it, if set.")],
    policy_url: Annotated[
        str | None, typer.Option(help="OpenAI-compatible address of the policy (Gavel or vLLM): http://HOST:PORT/v1")
    ] = None,
    policy_model: Annotated[str | None, typer.Option(help="Its name there. Default: the first that is served.")] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, help="Groups to send. Default: until the trainer has taken its last step.")
    ] = None,
    ahead: Annotated[
        float, typer.Option(min=0.01, help="Batches that may wait at the server or be in the making.")
    ] = 1.0,
    name: Annotated[str | None, typer.Option(help="What the environment is called there.")] = None,
    assignments: Assignments = None,
) -> None:
    """Play a scenario with the policy that a trainer serves, and send the judged groups to an Atropos server.

    Each group is one task, scored by the judge (or by --reward success=1 and others), with the exact tokens and
    log-probs of the policy. A file of judged groups is sent as it is. POLICY_API_KEY is the policy's key, if any.
    """
    from gavel.integrations.atropos.server import KEY_VARIABLE

    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    path = Path(source)
    if path.is_file() and path.suffix != ".py":
        from gavel.cli.attempts import read_attempts
        from gavel.cli.send_atropos_session import send_groups

        count, left_out = run_interruptibly(send_groups(read_attempts([path])[:groups], url, key, name or path.name))
        _tell(count, left_out)
        return
    if policy_url is None:
        raise typer.BadParameter("a scenario needs the policy that plays it", param_hint="--policy-url")
    config = run_config(source, values, assignments, flags=FLAGS).resolved()
    scenario = scenario_named(config.scenario)
    judge = config.judge.build(scenario.rubric) if "judge" in config.loop.reward else None
    if judge is not None:
        announce_stand_in(judge.names)
        check_stand_in(judge, scenario)
        run_interruptibly(judge.probe())
    from gavel.cli.send_atropos_session import Destination, send_scenario

    there = Destination(url, key, policy_url, policy_model, os.environ.get("POLICY_API_KEY") or "none")
    run_to_end(send_scenario(scenario, config.loop, judge, there, groups=groups, ahead=ahead, name=name, tell=_tell))


def _tell(count: int, left_out: Counter[str]) -> None:
    typer.echo(f"Sent {counted(count, 'group')}.")
    for reason, number in left_out.most_common():
        typer.echo(f"Not sent: {number:,} × {reason}")


app = single_command(with_options(send_atropos, RunConfig, FLAGS))
