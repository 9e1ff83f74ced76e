"""What an endpoint accepts, learned from its refusals: reply formats, and names of parameters.

    refused "temperature"                          it is left out from then on
    refused "max_tokens"                           it is sent as max_completion_tokens, and if that is refused, left out
    refused the JSON schema, or does not say what  plain JSON, then no format

Everything is asked at most once for an endpoint and process; what is left out is logged once.
"""

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from gavel.llm.failures import Failure
from gavel.llm.response import LOGPROBS, WITHOUT_LOGPROBS
from gavel.llm.types import Schema

FORMATS: tuple[tuple[str, Callable[[Schema], dict[str, Any]]], ...] = (
    (
        "json_schema",
        lambda schema: {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "scores", "schema": schema, "strict": True},
            }
        },
    ),
    ("json_object", lambda schema: {"response_format": {"type": "json_object"}}),
    ("text", lambda schema: {}),
)
"""From the most helpful to the most widely understood."""

COMPLETION_CAPS = ("max_completion_tokens", "max_tokens")
"""The names of the limit on a reply's tokens, the newer first."""
_TWINS: dict[str, str] = dict(zip(COMPLETION_CAPS, reversed(COMPLETION_CAPS), strict=True))
_DISPENSABLE = {"temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", *COMPLETION_CAPS}
"""Parameters without which a judge still judges; without another, such as reasoning_effort, it would be another."""


CONNECTION = frozenset(
    {"api_key", "api_base", "base_url", "api_version", "organization", "custom_llm_provider", "client", "timeout"}
)
"""Parameters that say where a request goes; they are no part of its body."""


class Dialect:
    """Of one endpoint."""

    def __init__(self) -> None:
        self.format = 0
        """Index of the first of `FORMATS` that was accepted."""
        self.takes_cap = True
        """Whether it keeps to a limit on a reply's tokens."""
        self._names: dict[str, str | None] = {}
        """By parameter, the name under which it is sent; None = left out."""

    def translate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters as this endpoint takes them."""
        named = {self._names.get(name, name): value for name, value in params.items()}
        return {name: value for name, value in named.items() if name is not None}

    def refused(self, failure: Failure, params: Mapping[str, Any]) -> str | None:
        """The one of the untranslated `params` that the endpoint does not take, if that is why a request failed."""
        sent = {name: self._names.get(name, name) for name in params if name not in CONNECTION}
        wire = {known: name for name, known in sent.items() if known is not None}
        wire |= {_TWINS[known]: name for known, name in wire.items() if known in _TWINS and _TWINS[known] not in wire}
        found = failure.refused_parameter(wire.keys())
        return None if found is None else wire[found]

    def do_without(self, name: str, endpoint: str, sent: Mapping[str, Any]) -> bool:
        """Gives the parameter another name, or leaves it out; False when it cannot be left out.

        `sent`: the request that was refused, translated; another call may have changed the dialect since.
        """
        if name not in _DISPENSABLE:
            return False
        known = self._names.get(name, name)
        if known is None or known not in sent:
            return True
        twin = _TWINS.get(name)
        self._names[name] = twin if twin is not None and known == name else None
        if self._names[name] is None:
            self.takes_cap = self.takes_cap and name not in COMPLETION_CAPS
            logging.getLogger(__name__).warning("%s does not take %s: it is left out.", endpoint, name)
        return True


def advice_without(parameter: str) -> str:
    """What to do about a parameter that an endpoint does not take, and without which it is not asked."""
    if parameter in LOGPROBS:
        return (
            "Where the server gives fewer log-probabilities, add --judge-param top_logprobs=5 (params); where it gives "
            f"none, {WITHOUT_LOGPROBS}"
        )
    return f"Leave {parameter} out of the judge's parameters (--judge-param, params)."


def endpoint_of(model: str, params: Mapping[str, Any]) -> tuple[str, str]:
    """The model and its server, where the user names one."""
    return model, str(params.get("api_base") or params.get("base_url") or "")


def dialect_of(endpoint: Hashable) -> Dialect:
    return dialects.setdefault(endpoint, Dialect())


dialects: dict[Hashable, Dialect] = {}
"""Of this process, by endpoint."""
