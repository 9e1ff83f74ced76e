"""How a turn opens that calls a tool: the tokens that a chat format always begins a call with.

A policy that is to call a tool and does not is asked again behind these tokens. They are then part of its prompt, so
its log-probs stay those of what it was shown. Where the format writes arguments as JSON, a grammar says how the call
goes on, so that it can be read however weak the policy is.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from renderers import Renderer

from gavel.llm.types import Message
from gavel.trainer.engines.grammar import json_rule

_ASKED: list[Any] = [{"role": "user", "content": "?"}]
_NAMES = ("alpha", "7_beta")
_ARGUMENTS = ("{}", '{"gamma": 2}')
_OBJECT = {"type": "object"}


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


def call_rest(
    renderer: Renderer, tools: list[Message], name: str | None, decode: Callable[[Sequence[int]], str]
) -> tuple[list[int], str]:
    """The opening of `call_opening`, and a grammar in Lark of the rest of the call; "" for a format whose calls are not
    a name and JSON between texts that never change."""
    opening = call_opening(renderer, tools, name)
    schemas: Any = tools
    start = len(renderer.render_ids(_ASKED, tools=schemas, add_generation_prompt=True))
    shown = _NAMES[0] if name is None else name
    turn = list(renderer.render_ids([*_ASKED, _call(shown, _ARGUMENTS[1])], tools=schemas))[start:]
    stops = set(renderer.get_stop_token_ids())
    turn = turn[: next((at for at, token in enumerate(turn) if token in stops), len(turn))]
    text = decode(turn)
    before, named, rest = text.partition(shown)
    between, argued, after = rest.partition(_ARGUMENTS[1])
    if not (opening and named and argued) or shown in rest:
        return opening, ""
    while len(decode(opening)) > len(before + named + between):  # an opening that goes on into the arguments
        opening = opening[:-1]
    opened = decode(opening)
    if not text.startswith(opened):
        return opening, ""
    functions = [tool["function"] for tool in tools if name in (None, tool["function"]["name"])]
    end = " ".join(_pieces(turn, len(before + named + between + argued), decode)) if after else ""
    calls = [
        f"{json.dumps((before + each['name'] + between)[len(opened) :])} a{number} {end}"
        for number, each in enumerate(functions)
        if (before + each["name"]).startswith(opened) or opened.startswith(before + each["name"])
    ]
    arguments = [
        f"a{number}: %json {json_rule({**_OBJECT, **(each.get('parameters') or {})})}"
        for number, each in enumerate(functions)
    ]
    return opening, "\n".join([f"start: {' | '.join(calls)}", *arguments])


def _pieces(turn: Sequence[int], start: int, decode: Callable[[Sequence[int]], str]) -> list[str]:
    """The text of a turn from a character on, as a grammar names it: marks of the format are tokens of their own."""
    pieces: list[str] = []
    at = 0
    for token in turn:
        text = decode([token])
        shown = text[max(0, start - at) :]
        at += len(text)
        if shown == text and len(text) > 2 and text[0] == "<" and text[-1] == ">":
            pieces.append(f"<[{token}]>")
        elif shown:
            pieces.append(json.dumps(shown))
    return pieces


def _call(name: str, arguments: str) -> Any:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def _common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    differs = (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return list(one[: next(differs, min(len(one), len(other)))])
