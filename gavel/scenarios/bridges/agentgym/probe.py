"""What a server says of itself before any environment is created on it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httpx

from gavel.base.network import is_on_this_machine
from gavel.scenarios.bridges.agentgym.kinds import Kind, kind_of_fields, kind_of_greeting, kind_of_path
from gavel.scenarios.scenario import ScenarioError

_SECONDS = 15.0
"""For each of at most three questions."""
MIRRORED = "gavel"
"""Field of the greeting of `gavel serve-env`."""


@dataclass(frozen=True, slots=True)
class Probed:
    kind: Kind | None
    """None: no known one is recognised."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of a server that `gavel serve-env` started; empty for any other."""


def probe(url: str, headers: Mapping[str, str]) -> Probed:
    """Asks the server. Raises `ScenarioError` when it does not answer, or wants another key."""
    with httpx.Client(
        timeout=_SECONDS, headers=dict(headers), trust_env=not is_on_this_machine(url), follow_redirects=True
    ) as client:
        try:
            greeting: Any = _json(client.get(f"{url}/"), url)
            if isinstance(greeting, dict) and MIRRORED in greeting:
                metadata = _json(client.get(f"{url}/metadata"), url)
                if not isinstance(metadata, dict):
                    raise ScenarioError(f"{url}/metadata answers no description.", "Start gavel serve-env anew.")
                return Probed(None, cast("dict[str, Any]", metadata))
            kind = kind_of_path(urlsplit(url).path) or kind_of_greeting(cast(object, greeting))
            return Probed(kind or kind_of_fields(_reset_fields(_json(client.get(f"{url}/openapi.json"), url))))
        except httpx.HTTPError as error:
            raise ScenarioError(
                f"the AgentGym server at {url} does not answer: {type(error).__name__} {error}".rstrip(),
                "Start it (textcraft --port 36001, or gavel serve-env SCENARIO), or mend the address.",
            ) from error


def _json(answer: httpx.Response, url: str) -> Any:
    """What an answer holds; None for an error or no JSON. Raises `ScenarioError` for a key that is refused."""
    if answer.status_code in (401, 403):
        raise ScenarioError(f"the server at {url} wants another key.", "Set GAVEL_ENV_KEY to the server's key.")
    if answer.status_code != 200:
        return None
    try:
        return json.loads(answer.content)
    except (ValueError, RecursionError):
        return None


def _reset_fields(schema: Any) -> list[str]:
    """The fields of `/reset`'s body in an OpenAPI document; none for what has another form."""
    match schema:
        case {
            "paths": {
                "/reset": {"post": {"requestBody": {"content": {"application/json": {"schema": {"$ref": str(ref)}}}}}}
            },
            "components": {"schemas": models},
        }:
            body: Any = cast("dict[str, Any]", models).get(ref.rpartition("/")[2]) if isinstance(models, dict) else None
        case _:
            return []
    properties: Any = cast("dict[str, Any]", body).get("properties") if isinstance(body, dict) else None
    return list(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else []
