"""`gavel serve-atropos`: Atropos' trajectory API in front of our learner; and
`gavel send-atropos`: a scenario as an environment of Atropos, for any server of its trajectory API.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from statistics import fmean
from typing import Annotated, Any

import typer
from openai import OpenAIError
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.interrupts import RESUME, run_interruptibly, run_to_end
from gavel.cli.named import scenario_named
from gavel.cli.options import (
    STAND_IN,
    Assignments,
    Fresh,
    announce_stand_in,
    prepare_judge,
    run_config,
    run_flags,
    settings_command,
)
from gavel.cli.terminal import say
from gavel.cli.training import local_backend, open_run, run_directory_of, trainable
from gavel.integrations._serving import listen_safely, serve
from gavel.integrations.atropos.queue import GroupQueue
from gavel.integrations.atropos.sender import EXACT, AtroposClient, AtroposSender
from gavel.integrations.atropos.server import KEY_VARIABLE, TrainerInfo, create_app
from gavel.judge.offline.stand_in import check_readable
from gavel.llm.providers import model_id
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.truth import Truth
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.data.token_sequences import COMPACT
from gavel.trainer.loop.experiment import describe_judge
from gavel.trainer.model import Model
from gavel.trainer.run_config import RunConfig

SERVE_FLAGS = [
    *run_flags("model", "lora", "judge", "--from-checkpoint", "--steps", "--learning-rate", "--loss", "--advantage"),
    *run_flags("--beta", "--micro-batch-tokens", "--gradient-checkpointing", "--engine", "--max-context"),
    *run_flags("--slots", "--tracker"),
]
KEY_HELP = "Environments show the key in GAVEL_ATROPOS_KEY; without one the server answers this machine alone."


def serve_atropos(
    values: Mapping[str, Any],
    host: Annotated[str, typer.Option(help=f"Address to listen on. {KEY_HELP}")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")] = 8000,
    policy_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the policy's endpoint; 0: a free one.")
    ] = 8001,
    project: Annotated[str, typer.Option(help="Under which the run is kept.")] = "atropos",
    batch_size: Annotated[int, typer.Option(min=2, help="Sequences of a training step, at least.")] = 64,
    wait_minutes: Annotated[
        float, typer.Option(min=0.01, help="End with an error after so long without a group.")
    ] = 60.0,
    max_waiting: Annotated[int, typer.Option(min=1, help="Groups that may wait; more are refused with 503.")] = 4096,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Of a request, unpacked.")] = 256,
    fresh: Fresh = False,
    assignments: Assignments = None,
) -> None:
    """Serve Atropos' trajectory API, and train a model on what its environments send.

    Environments sample the policy of --model at the address that is printed; --judge scores their groups anew. A group
    is on the disk before it is acknowledged, so a server that was killed goes on with the same command, and trains each
    group once.
    """
    key, console = os.environ.get(KEY_VARIABLE, "").strip() or None, Console()
    if values["model"] is None:
        raise typer.BadParameter(
            "name the model to train; another trainer gets its groups from atroposlib's own server, run-api",
            param_hint="--model",
        )
    need_extra("train", "gavel serve-atropos")
    from gavel.integrations.atropos.learner import AtroposLearner

    config = run_config(project, values, assignments, flags=SERVE_FLAGS).resolved()
    model, steps = trainable(config, project), config.loop.steps
    kept = run_directory_of(model) / "atropos"
    judge = None
    if values["judge"] is not None or values["rubric"] is not None:
        judge = config.judge.build()
        announce_stand_in(judge.names)
        if model_id(STAND_IN) in judge.names:
            check_readable(judge.rubric, [Truth()])
        run_interruptibly(judge.probe())

    async def train() -> None:
        backend = local_backend(config.backend, port=policy_port)
        listener = listen_safely(host, port, key, KEY_VARIABLE)
        async with open_run(console, model, config, judge, fresh=fresh, backend=backend) as run:
            fingerprint = {
                "scenario": project,
                "batch_size": batch_size,
                **({} if judge is None else describe_judge(judge)),
            }
            fingerprint["training"] = config.train.model_dump(mode="json", exclude=_NO_OTHER_RUN)
            backend.pin(model, fingerprint)
            run.begun()
            space, endpoint = backend.token_space(model), backend.endpoint(model)
            trainer = TrainerInfo(
                wandb_group=model.name,
                wandb_project=project,
                batch_size=batch_size,
                max_token_len=space.max_context,
                checkpoint_dir=str(kept.resolve()),
                num_steps=steps - 1,
            )

            def stepped(result: TrainResult, groups: list[TrajectoryGroup]) -> None:
                scores = [each.reward for group in groups for each in group if each.reward is not None]
                mean = f"{fmean(scores):.2f}" if scores else "–"
                told = f"mean score {mean}" if result.trained else result.reason
                waited = result.metrics.get("atropos/steps_waited/mean", 0.0)
                taken = counted(len(groups), "group")
                say(console, f"step {result.step}/{steps}  {taken}  {told}  waited {waited:.1f} steps")
                run.report.write_if_due()

            def announce(url: str) -> None:
                scored = f"scored by {', '.join(judge.names)}" if judge else "with the environments' scores"
                say(console, f"Atropos API · {url} · trains {model.name} ({model.base_model}) {scored}")
                say(
                    console,
                    f"Policy · {endpoint.base_url} · model {model.name} · API key: anything · {endpoint.limits}",
                )
                say(console, f"{counted(len(queue.waiting), 'group')} waiting · step {queue.step} of {steps}")

            async def work() -> None:
                sizes = steps, batch_size, 60 * wait_minutes
                await AtroposLearner(model, backend, queue, config.train, *sizes, judge, stepped).run()
                await asyncio.sleep(_LINGER_SECONDS)

            sizes = {"most_groups": max_waiting, "step": run.start}
            with closing(listener), closing(GroupQueue(kept / FILE, space, **sizes)) as queue:
                app = create_app(queue, trainer, key=key, most_bytes=max_body_mb << 20)
                await serve(app, listener, host=host, announce=announce, work=work())
        run.say_end()

    run_to_end(train(), RESUME)


_LINGER_SECONDS = 3.0
"""Seconds that the server stays up after the last step, so that environments learn that it is done."""
FILE = "queue.sqlite"
_NO_OTHER_RUN = {"total_steps", "warmup_steps", "micro_batch_tokens", "gradient_checkpointing", "whole_pass_tokens"}
"""Settings of which another value makes no other run."""


serve_atropos_app = settings_command(serve_atropos, RunConfig, SERVE_FLAGS)


SEND_FLAGS = run_flags("judge", "--reward", "--group-size", "--temperature", "--max-tokens", "--concurrency", "--seed")


def send_atropos(
    source: Annotated[str, typer.Argument(metavar="SCENARIO", help="The scenario to play.")],
    values: Mapping[str, Any],
    url: Annotated[str, typer.Option(help="Address of the Atropos API. GAVEL_ATROPOS_KEY is shown to it, if set.")],
    policy_url: Annotated[str, typer.Option(help="OpenAI-compatible address of the policy: http://HOST:PORT/v1")],
    policy_model: Annotated[str | None, typer.Option(help="Its name there. Default: the first that is served.")] = None,
    groups: Annotated[int | None, typer.Option(min=1, help="Groups to send. Default: until the trainer ends.")] = None,
    assignments: Assignments = None,
) -> None:
    """Play a scenario with the policy that a trainer serves, and send the judged groups to an Atropos server.

    Each group is one task, scored by the judge (or by --reward success=1 and others), with the exact tokens and
    log-probs of the policy. POLICY_API_KEY is the policy's key, if any.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    config = run_config(source, values, assignments, flags=SEND_FLAGS).resolved()
    scenario, loop = scenario_named(config.scenario), config.loop
    judge = prepare_judge(config.judge, scenario) if "judge" in loop.reward else None
    if judge is not None:
        run_interruptibly(judge.probe())

    async def send() -> None:
        model, is_gavel = await _policy(policy_url.rstrip("/"), policy_model, scenario.name)
        seen = Counter[bool]()

        def heard(group: TrajectoryGroup, problem: str | None) -> None:
            seen[problem is None] += 1
            if seen.total() % _TOLD_EVERY == 0:
                typer.echo(f"{counted(seen[True], 'group')} sent, {seen[False]:,} not", err=True)

        how = {"groups": groups, "fields": COMPACT if is_gavel else EXACT}
        waiting = "Waiting up to two minutes for the server and its trainer:"
        async with AtroposClient(url, key=key, on_wait=lambda why: typer.echo(f"{waiting} {why}", err=True)) as client:
            typer.echo(f"Sends {scenario.name}, played by {model.get_inference_name()}, to {client.url}", err=True)
            sent = await AtroposSender(client, model, scenario, loop, judge, on_group=heard, **how).run()
        typer.echo(f"Sent {counted(sent.groups, 'group')}.")
        for reason, number in sent.left_out.most_common():
            typer.echo(f"Not sent: {number:,} × {reason}")

    run_to_end(send())


_TOLD_EVERY = 16


async def _policy(url: str, named: str | None, project: str) -> tuple[Model, bool]:
    """The policy at `url`, by default the first that is served, and whether Gavel serves it. Raises `GavelError`."""
    key = os.environ.get("POLICY_API_KEY") or "none"
    model = Model(name=named or "policy", project=project, inference_base_url=url, inference_api_key=key)
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
    name = named or next(iter(owners))
    if name not in owners:
        raise GavelError(f"{url} does not serve {name}", f"It serves {', '.join(owners)}.")
    return model.model_copy(update={"name": name}), owners[name] == "gavel"


send_atropos_app = settings_command(send_atropos, RunConfig, SEND_FLAGS)
