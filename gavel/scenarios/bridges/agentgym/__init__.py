"""Environments behind AgentGym's HTTP protocol, as scenarios.

    gavel train agentgym:http://127.0.0.1:36001?tasks=200&held_out=50 --model Qwen/Qwen3-4B --judge openai/gpt-5-mini
    scenario = agentgym("webshop+http://127.0.0.1:36003?style=tools")

The server is asked what it is when the scenario is made; its environments are created by the episodes. One that
`gavel serve-env` started is mirrored: system prompt, tools, tasks and success are those of its scenario.
"""

import os
from functools import partial

from gavel.prompts import render
from gavel.scenarios.bridges.agentgym.address import Address, parse
from gavel.scenarios.bridges.agentgym.connection import AgentGymError as AgentGymError
from gavel.scenarios.bridges.agentgym.connection import Connection
from gavel.scenarios.bridges.agentgym.kinds import KINDS, OTHER, Kind
from gavel.scenarios.bridges.agentgym.mirror import mirrored
from gavel.scenarios.bridges.agentgym.probe import probe
from gavel.scenarios.bridges.agentgym.sessions import EnvServer
from gavel.scenarios.bridges.agentgym.worlds import ActWorld, ReactWorld
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task

KEY_VARIABLE = "GAVEL_ENV_KEY"
"""Environment variable with the key of a server that wants one."""
_WAIT = 600.0
"""Seconds for an environment of a server that holds only so many."""


def scenario_at(address: str) -> Scenario:
    """The scenario of `agentgym:ADDRESS`. Raises `ScenarioError`."""
    return agentgym(address)


def agentgym(address: str, *, rubric: str | None = None) -> Scenario:
    """The scenario of an environment server. `address`: as after `agentgym:`, see `address.parse`.

    `rubric`: what good work is, for the judge; by default a general one. Raises `ScenarioError` for an address that
    cannot be read, and for a server that does not answer.
    """
    parsed = parse(address)
    key = os.environ.get(KEY_VARIABLE, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    found = probe(parsed.url, headers)
    if found.metadata:
        return mirrored(parsed, found.metadata, headers)
    kind = KINDS[parsed.kind] if parsed.kind is not None else found.kind or OTHER
    connection = Connection(parsed.url, parsed.timeout, parsed.concurrency, headers)
    server = EnvServer(connection, kind, dialect=parsed.dialect, wait_seconds=_WAIT)
    train, held_out = _items(parsed, kind)
    return Scenario(
        f"agentgym_{kind.name}",
        system=render(
            "scenarios/agentgym_system.j2", environment=kind.name, form=kind.form, style=parsed.style
        ).strip(),
        environment=partial(ReactWorld if parsed.style == "react" else ActWorld, server),
        tasks=[_task(kind, item) for item in train],
        held_out=[_task(kind, item) for item in held_out],
        max_turns=parsed.turns,
        call_seconds=_WAIT + 4 * parsed.timeout,
        rubric=rubric or render("scenarios/agentgym_rubric.j2").strip(),
    )


def _items(address: Address, kind: Kind) -> tuple[range, range]:
    train, held_out = address.splits(kind.train, kind.held_out)
    if both := set(train) & set(held_out):
        raise ScenarioError(
            f"item {min(both)} is among tasks= and among held_out=.",
            "Write ranges that do not meet: tasks=0-199&held_out=200-249",
        )
    return train, held_out


def _task(kind: Kind, item: int) -> Task:
    return Task(id=f"{kind.name}-{item}", user="", data={"item": item})
