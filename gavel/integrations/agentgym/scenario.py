"""Environments behind AgentGym's HTTP protocol, as scenarios.

    gavel train agentgym:http://127.0.0.1:36001?tasks=200&held_out=50 --model Qwen/Qwen3-4B --judge openai/gpt-5-mini
    scenario = agentgym("webshop+http://127.0.0.1:36003?turns=15")

The server's kind is detected when the scenario is created; episodes create its environments.
"""

import json
import os
from collections.abc import Mapping
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import httpx

from gavel.base.network import is_on_this_machine
from gavel.integrations.agentgym.client import EnvServer
from gavel.integrations.agentgym.protocol import KINDS, OTHER, Kind, kind_of_greeting, kind_of_path, parse
from gavel.integrations.agentgym.worlds import ReactWorld
from gavel.prompts import render
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task

_SECONDS = 15.0
"""Timeout in seconds of the probe."""


def probe(url: str, headers: Mapping[str, str]) -> Kind:
    """Detects the kind of a server. Raises `ScenarioError` if it does not answer, or requires another key."""
    with httpx.Client(
        timeout=_SECONDS, headers=dict(headers), trust_env=not is_on_this_machine(url), follow_redirects=True
    ) as client:
        try:
            greeting: Any = _json(client.get(f"{url}/"), url)
            match greeting:
                case {"gavel": str(name), "train": int(train), "held_out": int(held_out), **more}:
                    rubric = more.get("rubric")
                    items = range(train), range(train, train + held_out)
                    return Kind(name, ("data_idx",), *items, form="reply", rubric=rubric and str(rubric))
                case _:
                    return kind_of_path(urlsplit(url).path) or kind_of_greeting(cast(object, greeting)) or OTHER
        except httpx.HTTPError as error:
            raise ScenarioError(
                f"the AgentGym server at {url} does not answer: {type(error).__name__} {error}".rstrip(),
                "Start it (textcraft --port 36001, or gavel serve-env SCENARIO), or mend the address.",
            ) from error


def _json(answer: httpx.Response, url: str) -> Any:
    """The JSON of a response; None for an error or invalid JSON. Raises `ScenarioError` for a rejected key."""
    if answer.status_code in (401, 403):
        raise ScenarioError(f"the server at {url} wants another key.", "Set GAVEL_ENV_KEY to the server's key.")
    if answer.status_code != 200:
        return None
    try:
        return json.loads(answer.content)
    except (ValueError, RecursionError):
        return None


KEY_VARIABLE = "GAVEL_ENV_KEY"
"""Environment variable with the key of a server that requires one."""
_WAIT = 600.0
"""Max seconds to wait for an environment of a server with limited capacity."""


def agentgym(address: str, *, rubric: str | None = None) -> Scenario:
    """The scenario of an environment server. `address`: the part after `agentgym:`, see `parse`.

    `rubric`: for the judge; by default a general one. Raises `ScenarioError` for an invalid address, and for a server
    that does not answer.
    """
    url, named, options = parse(address)
    key = os.environ.get(KEY_VARIABLE, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    found = probe(url, headers)
    kind = KINDS[named] if named is not None else found
    server = EnvServer(url, kind, headers, seconds=options.timeout, wait_seconds=_WAIT)
    train, held_out = options.splits(kind.train, kind.held_out)
    return Scenario(
        f"agentgym_{kind.name}",
        system=render("scenarios/agentgym_system.j2", environment=kind.name, form=kind.form).strip(),
        environment=partial(ReactWorld, server),
        tasks=[_task(kind, item) for item in train],
        held_out=[_task(kind, item) for item in held_out],
        max_turns=options.turns,
        call_seconds=_WAIT + 4 * options.timeout,
        rubric=rubric or kind.rubric or render("scenarios/agentgym_rubric.j2").strip(),
    )


scenario_at = agentgym
"""The name by which `agentgym:ADDRESS` is found."""


def _task(kind: Kind, item: int) -> Task:
    return Task(id=f"{kind.name}-{item}", user="", data={"item": item})
