"""How a turn opens that calls a tool: the tokens that a chat format always begins a call with.

A policy that is to call a tool and does not is asked again behind these tokens. They are then part of its prompt, so
its log-probs stay those of what it was shown.
"""

from collections.abc import Sequence
from typing import Any

from renderers import Renderer

from gavel.llm.types import Message

_ASKED: list[Any] = [{"role": "user", "content": "?"}]
_NAMES = ("alpha", "7_beta")
_ARGUMENTS = ("{}", '{"gamma": 2}')


def call_opening(renderer: Renderer, tools: list[Message], name: str | None) -> list[int]:
    """The tokens of a turn up to the called tool's name, or with it where `name` is given; none where a format has no
    such beginning."""
    schemas: Any = tools
    opening = list(renderer.render_ids(_ASKED, tools=schemas, add_generation_prompt=True))
    probes = [(each, _ARGUMENTS[0]) for each in _NAMES] if name is None else [(name, each) for each in _ARGUMENTS]
    turns = [list(renderer.render_ids([*_ASKED, _call(*probe)], tools=schemas)) for probe in probes]
    if any(turn[: len(opening)] != opening for turn in turns):
        return []
    return _common(*(turn[len(opening) :] for turn in turns))


def _call(name: str, arguments: str) -> Any:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def _common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    differs = (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return list(one[: next(differs, min(len(one), len(other)))])
