"""`gavel serve-atropos`: Atropos' trajectory API in front of our learner, or for another trainer; and
`gavel send-atropos`: a scenario as an environment of Atropos, for any server of its trajectory API.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from openai import OpenAIError
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import scenario_named
from gavel.cli.options import (
    LORA_FLAGS,
    MEMORY_FLAGS,
    MODEL_FLAGS,
    RUN_JUDGE_FLAGS,
    STAND_IN,
    START_FLAG,
    Assignments,
    Flag,
    announce_stand_in,
    check_stand_in,
    run_config,
    with_options,
)
from gavel.cli.terminal import RESUME, run_interruptibly, run_to_end, say
from gavel.cli.training import open_run, run_directory_of, trainable
from gavel.integrations.atropos.queue import GroupQueue, OwnTrainer, QueueState, TrainerRegistration
from gavel.integrations.atropos.sender import EXACT, AtroposClient, AtroposSender
from gavel.integrations.atropos.server import KEY_VARIABLE, checked_listener, serve
from gavel.judge.judge import Judge
from gavel.judge.offline.stand_in import check_readable
from gavel.llm.providers import model_id
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.truth import Truth
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.config import LoopConfig
from gavel.trainer.data.token_sequences import COMPACT
from gavel.trainer.loop.experiment import describe_judge
from gavel.trainer.model import Model
from gavel.trainer.run_config import RunConfig

SERVE_FLAGS = [
    *MODEL_FLAGS,
    START_FLAG,
    *LORA_FLAGS,
    *RUN_JUDGE_FLAGS,
    Flag("loop.steps", "--steps"),
    Flag("train.learning_rate", "--learning-rate", "1e-5; 2e-3 for an embedded model"),
    Flag("train.loss.kind", "--loss", "grpo"),
    Flag("train.advantage", "--advantage"),
    Flag("train.optimizer", "--optimizer"),
    Flag("train.beta", "--beta"),
    *MEMORY_FLAGS,
    Flag("backend.engine", "--engine"),
    Flag("backend.max_context", "--max-context"),
    Flag("backend.slots", "--slots"),
    Flag("backend.tracker", "--tracker"),
]
KEY_HELP = "Environments show the key in GAVEL_ATROPOS_KEY; without one the server answers this machine alone."


def serve_atropos(
    values: Mapping[str, Any],
    host: Annotated[str, typer.Option(help=f"Address to listen on. {KEY_HELP}")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")] = 8000,
    policy_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the policy's OpenAI-compatible endpoint; 0 takes a free one.")
    ] = 8001,
    project: Annotated[str, typer.Option(help="Under which the run is kept.")] = "atropos",
    batch_size: Annotated[int, typer.Option(min=2, help="Sequences of a training step, at least.")] = 64,
    wait_minutes: Annotated[
        float, typer.Option(min=0.01, help="End with an error when no group came for so long.")
    ] = 60.0,
    data: Annotated[
        Path, typer.Option(help="Without --model: the directory in which groups are kept for another trainer.")
    ] = Path("atropos-data"),
    max_waiting: Annotated[int, typer.Option(min=1, help="Groups that may wait; more are refused with 503.")] = 4096,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Of a request, unpacked.")] = 256,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")] = False,
    assignments: Assignments = None,
) -> None:
    """Serve Atropos' trajectory API: to train here on what its environments send, or to hand it to another trainer.

    With --model the groups train that model, whose policy environments sample at the address that is printed; --judge
    scores them anew. Without --model another trainer registers and reads /batch. A group is on the disk before it is
    acknowledged, so a server that was killed goes on with the same command, and trains each group once.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    limits = {"max_waiting": max_waiting, "most_bytes": max_body_mb << 20}
    if values["model"] is None:
        unused = [flag.name for flag in SERVE_FLAGS if values.get(flag.key) not in (None, [])] + ["--fresh"] * fresh
        if unused:
            raise typer.BadParameter(f"{unused[0]} is of the learner, which --model names", param_hint=unused[0])
        need_extra("service", "gavel serve-atropos")
        run_to_end(serve_queue(data, host, port, key, **limits))
        return
    need_extra("train", "gavel serve-atropos --model")
    config = run_config(project, values, assignments, flags=SERVE_FLAGS).resolved()
    judge = None
    if values["judge"] is not None or values["rubric"] is not None:
        judge = config.judge.build()
        announce_stand_in(judge.names)
        if model_id(STAND_IN) in judge.names:
            check_readable(judge.rubric, [Truth()])
        run_interruptibly(judge.probe())
    limits |= {"batch_size": batch_size, "policy_port": policy_port}
    served = serve_learner(
        config, project, judge, host, port, key, fresh=fresh, wait_seconds=60 * wait_minutes, **limits
    )
    run_to_end(served, RESUME)


_LINGER_SECONDS = 3.0
"""Seconds that the server stays up after the last step, so that environments learn that it is done."""
_CHECKPOINTS = 3
FILE = "queue.sqlite"


async def serve_queue(data: Path, host: str, port: int, key: str | None, *, max_waiting: int, most_bytes: int) -> None:
    """Serves groups to another trainer until it is told to stop."""
    console = Console()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(checked_listener(host, port, key)))
        queue = stack.enter_context(contextlib.closing(GroupQueue(data / FILE, most_groups=max_waiting)))

        def announce(url: str) -> None:
            say(console, f"Atropos API · {url} · {counted(len(queue.waiting), 'group')} waiting · {queue.path}")
            say(console, "No learner here: a trainer registers and reads /batch. --model NAME trains in this process.")

        state = QueueState(queue)
        await serve(state, listener, host=host, key=key, most_bytes=most_bytes, announce=announce)


async def serve_learner(
    config: RunConfig,
    project: str,
    judge: Judge | None,
    host: str,
    port: int,
    key: str | None,
    *,
    policy_port: int,
    batch_size: int,
    max_waiting: int,
    most_bytes: int,
    wait_seconds: float,
    fresh: bool,
) -> None:
    """Serves and trains until the last step or until it is told to stop."""
    from gavel.integrations.atropos.learner import AtroposLearner, LearnerSettings
    from gavel.trainer.backends.local import LocalBackend

    console = Console()
    model = trainable(config, project)
    kept = run_directory_of(model) / "atropos"
    steps = config.loop.steps
    backend = LocalBackend(
        engine=config.backend.engine,
        port=policy_port,
        slots=config.backend.slots,
        max_context=config.backend.max_context,
        max_reply=config.backend.max_reply,
        tracker=config.backend.tracker,
    )
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(checked_listener(host, port, key)))
        run = await stack.enter_async_context(open_run(console, model, backend, judge, fresh=fresh))
        backend.pin(model, _experiment(config, project, batch_size, judge))
        run.begun()
        queue = stack.enter_context(contextlib.closing(GroupQueue(kept / FILE, most_groups=max_waiting)))
        space, endpoint = backend.token_space(model), backend.endpoint(model)
        registration = TrainerRegistration(
            wandb_group=model.name,
            wandb_project=project,
            batch_size=batch_size,
            max_token_len=space.max_context,
            checkpoint_dir=str(kept.resolve()),
            save_checkpoint_interval=0,
            starting_step=run.start,
            num_steps=steps - 1,  # an environment ends once the step and the batches that wait are more than this
        )
        state = QueueState(queue, OwnTrainer(registration, space))

        def stepped(result: TrainResult, groups: list[TrajectoryGroup]) -> None:
            scores = [each.reward for group in groups for each in group if each.reward is not None]
            mean = f"{fmean(scores):.2f}" if scores else "–"
            told = f"mean score {mean}" if result.trained else result.reason
            waited = result.metrics.get("atropos/steps_waited/mean", 0.0)
            taken = counted(len(groups), "group")
            say(console, f"step {result.step}/{steps}  {taken}  {told}  waited {waited:.1f} steps")
            if run.report is not None:
                run.report.write_if_due()

        bounds = LearnerSettings(steps, batch_size, wait_seconds, keep_checkpoints=_CHECKPOINTS)
        learner = AtroposLearner(model, backend, state, bounds, config.train, judge, stepped)

        async def work() -> None:
            await learner.run()
            await asyncio.sleep(_LINGER_SECONDS)

        def announce(url: str) -> None:
            scored = f"scored by {', '.join(judge.names)}" if judge else "with the environments' scores"
            say(console, f"Atropos API · {url} · trains {model.name} ({model.base_model}) {scored}")
            say(console, f"Policy · {endpoint.base_url} · model {model.name} · API key: anything · {endpoint.limits}")
            say(console, f"{counted(len(queue.waiting), 'group')} waiting · step {queue.step} of {steps}")

        await serve(state, listener, host=host, key=key, most_bytes=most_bytes, announce=announce, work=work())
    run.say_end()


def _experiment(config: RunConfig, project: str, batch_size: int, judge: Judge | None) -> dict[str, object]:
    """The fingerprint of the run: another value of one of these settings makes another run."""
    training = config.train.model_dump(
        mode="json",
        exclude={"total_steps", "warmup_steps", "micro_batch_tokens", "gradient_checkpointing", "whole_pass_tokens"},
    )
    judged = {} if judge is None else describe_judge(judge)
    return {"scenario": project, "batch_size": batch_size, "training": training, **judged}


serve_atropos_app = single_command(with_options(serve_atropos, RunConfig, SERVE_FLAGS))


SEND_FLAGS = [
    *RUN_JUDGE_FLAGS,
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
        typer.Argument(metavar="SCENARIO", help="The scenario to play."),
    ],
    values: Mapping[str, Any],
    url: Annotated[str, typer.Option(help="Address of the Atropos API. GAVEL_ATROPOS_KEY is shown to it, if set.")],
    policy_url: Annotated[
        str, typer.Option(help="OpenAI-compatible address of the policy (Gavel or vLLM): http://HOST:PORT/v1")
    ],
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
    log-probs of the policy. POLICY_API_KEY is the policy's key, if any.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    config = run_config(source, values, assignments, flags=SEND_FLAGS).resolved()
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
    seen = Counter[bool]()

    def heard(group: TrajectoryGroup, problem: str | None) -> None:
        seen[problem is None] += 1
        if seen.total() % _TOLD_EVERY == 0:
            typer.echo(f"{counted(seen[True], 'group')} sent, {seen[False]:,} not", err=True)

    async with AtroposClient(url, key=key, on_wait=tell_wait) as client:
        typer.echo(f"Sends {scenario.name}, played by {model.get_inference_name()}, to {client.url}", err=True)
        fields = COMPACT if is_gavel else EXACT
        sender = AtroposSender(
            client, model, scenario, loop, judge, groups=groups, ahead=ahead, name=name, fields=fields, on_group=heard
        )
        sent = await sender.run()
    typer.echo(f"Sent {counted(sent.groups, 'group')}.")
    for reason, number in sent.left_out.most_common():
        typer.echo(f"Not sent: {number:,} × {reason}")


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


send_atropos_app = single_command(with_options(send_atropos, RunConfig, SEND_FLAGS))
