"""`gavel send-atropos`: a scenario as an environment of Atropos, for any server of its trajectory API."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from openai import OpenAIError

from gavel.base.errors import GavelError
from gavel.base.text import counted
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import read_attempts, scenario_named
from gavel.cli.options import (
    JUDGE_FLAGS,
    Assignments,
    Flag,
    announce_stand_in,
    check_stand_in,
    run_config,
    with_options,
)
from gavel.cli.terminal import run_interruptibly, run_to_end
from gavel.integrations.atropos.group import atropos_group
from gavel.integrations.atropos.queue import EnvRegistration
from gavel.integrations.atropos.sender import EXACT, AtroposClient, AtroposSender, SenderSettings
from gavel.integrations.atropos.server import KEY_VARIABLE
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario
from gavel.trainer.config import LoopConfig
from gavel.trainer.data.token_sequences import COMPACT
from gavel.trainer.model import Model
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
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    path = Path(source)
    if path.is_file() and path.suffix != ".py":
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
    policy = Model(
        name=policy_model or _UNNAMED,
        project=scenario.name,
        inference_base_url=policy_url.rstrip("/"),
        inference_api_key=os.environ.get("POLICY_API_KEY") or "none",
    )
    run_to_end(send_scenario(scenario, config.loop, judge, policy, url, key, groups=groups, ahead=ahead, name=name))


def _tell(count: int, left_out: Counter[str]) -> None:
    typer.echo(f"Sent {counted(count, 'group')}.")
    for reason, number in left_out.most_common():
        typer.echo(f"Not sent: {number:,} × {reason}")


_TOLD_EVERY = 16
_UNNAMED = "policy"
"""The name of a policy that is not named by the user."""


async def send_scenario(
    scenario: Scenario,
    loop: LoopConfig,
    judge: Judge | None,
    model: Model,
    url: str,
    key: str | None,
    *,
    groups: int | None,
    ahead: float,
    name: str | None,
) -> None:
    """Sends until enough groups are sent, or the trainer is done. `model`: without a name, the first that is served."""
    model, is_gavel = await _policy(model)
    settings = SenderSettings(
        groups=groups,
        group_size=loop.group_size,
        reward=loop.reward,
        temperature=loop.temperature,
        max_tokens=loop.max_tokens,
        seed=loop.seed,
        max_batches_ahead=ahead,
        name=name,
        concurrency=loop.concurrency,
    )
    seen = Counter[bool]()

    def heard(group: TrajectoryGroup, problem: str | None) -> None:
        seen[problem is None] += 1
        if seen.total() % _TOLD_EVERY == 0:
            typer.echo(f"{counted(seen[True], 'group')} sent, {seen[False]:,} not", err=True)

    async with AtroposClient(url, key=key, on_wait=tell_wait) as client:
        typer.echo(f"Sends {scenario.name}, played by {model.get_inference_name()}, to {client.url}", err=True)
        fields = COMPACT if is_gavel else EXACT
        sent = await AtroposSender(client, model, scenario, settings, judge, fields=fields, on_group=heard).run()
    _tell(sent.groups, sent.left_out)


async def send_groups(
    groups: Sequence[TrajectoryGroup], url: str, key: str | None, name: str
) -> tuple[int, Counter[str]]:
    """Sends stored groups as they are; how many, and why members were left out."""
    found = [atropos_group(group) for group in groups]
    left_out = Counter(reason for each in found for reason in each.left_out)
    usable = [each.group for each in found if each.group is not None]
    if not usable:
        return 0, left_out
    async with AtroposClient(url, key=key, on_wait=tell_wait) as client:
        registered = await client.register(
            EnvRegistration(
                max_token_length=max(len(tokens) for group in usable for tokens in group.tokens) + 1,
                desired_name=name,
                group_size=max(map(len, usable)),
            )
        )
        for group in usable:
            group.env_id = registered["env_id"]
            await client.send(group)
        await client.disconnect(registered["env_id"])
    return len(usable), left_out


def tell_wait(reason: str) -> None:
    typer.echo(f"Waiting up to two minutes for the server and its trainer: {reason}", err=True)


async def _policy(model: Model) -> tuple[Model, bool]:
    """The policy with its name, and whether Gavel serves it. Raises `GavelError`."""
    url = model.inference_base_url
    try:
        served = (await model.openai_client().models.list()).data
    except OpenAIError as error:
        raise GavelError(
            f"the policy at {url} cannot be asked: {error}",
            "Give its OpenAI-compatible address, which ends in /v1 (--policy-url), and its key in POLICY_API_KEY.",
        ) from error
    owners = {each.id: each.owned_by for each in served}
    if not owners:
        raise GavelError(f"{url} serves no model", "Name one: --policy-model")
    name = next(iter(owners)) if model.name == _UNNAMED else model.name
    if name not in owners:
        raise GavelError(f"{url} does not serve {name}", f"It serves {', '.join(owners)}.")
    return model.model_copy(update={"name": name}), owners[name] == "gavel"


app = single_command(with_options(send_atropos, RunConfig, FLAGS))
