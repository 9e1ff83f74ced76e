"""What `gavel send-atropos` does: a scenario's rollouts, or stored groups, sent to a server."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import typer
from openai import OpenAIError

from gavel.base.errors import GavelError
from gavel.base.text import counted
from gavel.integrations.atropos.group import atropos_group
from gavel.integrations.atropos.queue import EnvRegistration
from gavel.integrations.atropos.sender import EXACT, AtroposClient, AtroposSender, SenderSettings
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario
from gavel.trainer.config import LoopConfig
from gavel.trainer.data.token_sequences import COMPACT
from gavel.trainer.model import Model

_TOLD_EVERY = 16


@dataclass(frozen=True, slots=True)
class Destination:
    """Where groups go, and who plays."""

    url: str
    key: str | None
    policy_url: str
    policy_model: str | None
    policy_key: str


class PolicyError(GavelError):
    """The policy cannot be asked."""


async def send_scenario(
    scenario: Scenario,
    loop: LoopConfig,
    judge: Judge | None,
    there: Destination,
    *,
    groups: int | None,
    ahead: float,
    name: str | None,
    tell: Callable[[int, Counter[str]], None],
) -> None:
    """Sends until enough groups are sent, or the trainer is done."""
    model, is_gavel = await _policy(there, scenario)
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
    seen = [0, 0]

    def heard(group: TrajectoryGroup, problem: str | None) -> None:
        seen[problem is not None] += 1
        if sum(seen) % _TOLD_EVERY == 0:
            typer.echo(f"{counted(seen[0], 'group')} sent, {seen[1]:,} not", err=True)

    async with AtroposClient(there.url, key=there.key, on_wait=tell_wait) as client:
        typer.echo(f"Sends {scenario.name}, played by {model.get_inference_name()}, to {client.url}", err=True)
        fields = COMPACT if is_gavel else EXACT
        sent = await AtroposSender(client, model, scenario, settings, judge, fields=fields, on_group=heard).run()
    tell(sent.groups, sent.left_out)


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


async def _policy(there: Destination, scenario: Scenario) -> tuple[Model, bool]:
    """The policy, and whether Gavel serves it. Raises `PolicyError`."""
    fields = {"inference_base_url": there.policy_url.rstrip("/"), "inference_api_key": there.policy_key}
    model = Model(name=there.policy_model or "policy", project=scenario.name, **fields)
    try:
        served = (await model.openai_client().models.list()).data
    except OpenAIError as error:
        raise PolicyError(
            f"the policy at {there.policy_url} cannot be asked: {error}",
            "Give its OpenAI-compatible address, which ends in /v1 (--policy-url), and its key in POLICY_API_KEY.",
        ) from error
    names = [each.id for each in served]
    if there.policy_model is not None and there.policy_model not in names:
        raise PolicyError(f"{there.policy_url} does not serve {there.policy_model}", f"It serves {', '.join(names)}.")
    if not names:
        raise PolicyError(f"{there.policy_url} serves no model", "Name one: --policy-model")
    name = there.policy_model or names[0]
    is_gavel = next(each.owned_by for each in served if each.id == name) == "gavel"
    return Model(name=name, project=scenario.name, **fields), is_gavel
