"""Tool calls written as text: the instructions for the agent, and their parser.

    "Thought: …\nAction: look_up_order {\"order_id\": \"7\"}"     ->  [TextCall("look_up_order", '{"order_id": "7"}')]
    {"name": "look_up_order", "arguments": {"order_id": "7"}}     ->  the same; also `look_up_order(order_id="7")`
    "Thought: …\nAnswer: It is refunded."                         ->  Words("It is refunded.")

A text is only ever parsed: nothing in it is evaluated. A malformed call is `Unreadable`, with a problem that the agent
can be told.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gavel.llm.types import Message

_SECTION = re.compile(
    r"^[^\S\n]*\**(Thought|Action|Observation|(?:Final )?Answer)\**[^\S\n]*:\**", re.IGNORECASE | re.MULTILINE
)
_INLINE = re.compile(r"\bAction:")
"""An action after a thought on the same line."""
_NAMED = re.compile(r"([A-Za-z_][\w.-]*)(?=[\s(]|$)(?:\s+(?:with\s+)?Action Input\s*:)?", re.IGNORECASE)
_FENCE = re.compile(r"```(?:[\w-]*\n)?(.*?)```", re.DOTALL)
_NAMES = ("name", "function_name", "tool", "tool_name", "function", "action")
_ARGUMENTS = ("arguments", "args", "parameters", "input", "action_input")
_FINISH = ("finish", "final_answer", "answer")
_WORD = re.compile(r"[A-Za-z0-9]+")
_LONGEST = 20_000
"""Max characters of a text that is parsed as code or JSON."""


@dataclass(frozen=True, slots=True)
class TextCall:
    """A call of a tool."""

    name: str
    arguments: str
    """The arguments as JSON text."""


@dataclass(frozen=True, slots=True)
class Words:
    """A turn without a call."""

    text: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A turn with a malformed call."""

    problem: str


Turn = list[TextCall] | Words | Unreadable


def read_turn(text: str, schemas: Sequence[Message]) -> Turn:
    """Parses a turn into its calls or its words. `schemas`: OpenAI schemas of the callable tools."""
    tools: dict[str, Any] = {each["function"]["name"]: each["function"].get("parameters") or {} for each in schemas}
    said = text.strip().removesuffix("</s>").strip()
    _, *parts = _SECTION.split(said)
    sections = [(label.lower(), body.strip()) for label, body in zip(parts[::2], parts[1::2], strict=True)]
    actions = [body for label, body in sections if label == "action"]
    answers = [body for label, body in sections if label.endswith("answer")]
    if not actions and sections and sections[0][0] == "thought":
        actions = [body.strip() for body in _INLINE.split(sections[0][1])[1:]]
    if not tools:
        return Words([said, *answers, *actions][-1])
    if len(actions) > 1:
        return Unreadable("Write one action in a turn, and wait for what it gives.")
    if actions:
        fenced = _FENCE.fullmatch(actions[0])
        return [*_find_json_calls(actions[0], tools)] or _parse_action(
            fenced[1].strip() if fenced else actions[0], tools
        )
    if answers and answers[-1]:
        return Words(answers[-1])
    if calls := [*_find_json_calls(said, tools)]:
        return calls
    if "thought" in dict(sections):
        return Unreadable(f"The thought is followed by neither an action nor an answer. {_how(tools)}")
    if len(said) < _LONGEST and '"arguments"' in said and said.startswith(("{", "[", "```", "<tool_call>")):
        return Unreadable(f"The call is not valid JSON. {_how(tools)}")
    first = re.match(r"[A-Za-z_][\w.-]*", said)
    if first is not None and _known(first[0], tools):
        return _parse_action(said, tools)
    stripped = {_letters(name): name for name in tools if _letters(name) != name}
    if (found := next((stripped[word] for word in _WORD.findall(said) if word in stripped), None)) is not None:
        return Unreadable(f"A call of {found} arrived without its punctuation. Write `Action: {found} VALUE`.")
    return Words(said)


def calls_message(calls: Sequence[TextCall], turn: int) -> Message:
    """The assistant's message with these calls; `turn` makes their ids unique in a conversation."""
    made = [
        {"id": f"call_{turn}_{n}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for n, call in enumerate(calls)
    ]
    return {"content": "", "tool_calls": made}


def signature(function: Mapping[str, Any]) -> str:
    """A tool in one line: `refund(order_id: string): Pay the money back.`"""
    parameters: Mapping[str, Any] = function.get("parameters") or {}
    required: Sequence[str] = parameters.get("required") or ()
    parts = [
        f"{name}{'' if name in required else '?'}: {_type_of(schema)}"
        for name, schema in cast("dict[str, Any]", parameters.get("properties") or {}).items()
    ]
    described = str(function.get("description") or "").partition("\n")[0]
    return f"{function['name']}({', '.join(parts)}){f': {described}' if described else ''}"


def _parse_action(action: str, tools: Mapping[str, Any]) -> Turn:
    """Parses `name {…}`, `name with Action Input: {…}`, `name(…)`, `name value`, `finish …`."""
    match = _NAMED.match(action)
    written = match[1] if match else ""
    name = _known(written, tools)
    if match is None or (name is None and written not in _FINISH):
        return Unreadable(f"There is no tool {action.partition(' ')[0][:60]!r}. {_how(tools)}")
    given = action[match.end() :]
    positional: list[Any] = []
    named: dict[str, Any] | None = None
    if given.lstrip().startswith("("):
        if (literals := _read_literals(f"call{given}")) is not None:
            positional, named = literals
        elif given.startswith("("):
            return Unreadable(f"The arguments of {written} are no literal values. {_how(tools)}")
    given = given.strip()
    if given.startswith(("{", "[", '"')):
        try:
            value: Any = json.loads(given[:_LONGEST])
        except (ValueError, RecursionError):
            if not given.startswith('"'):
                return Unreadable(f"The input of {written} is not valid JSON.")
            value = given
        if isinstance(value, dict):
            named = cast("dict[str, Any]", value)
        elif isinstance(value, str):
            given = value
    if name is None:
        return Words(given if named is None else " ".join(map(str, [*positional, *named.values()])))
    if named is None:
        return _parse_plain_call(name, given, tools[name])
    order = [*(tools[name].get("properties") or ())]
    if len(positional) > len(order):
        return Unreadable(f"{name} takes {len(order)} arguments, and {len(positional)} were given.")
    try:
        return [TextCall(name, json.dumps({**dict(zip(order, positional, strict=False)), **named}, ensure_ascii=False))]
    except (TypeError, ValueError):
        return Unreadable(f"The arguments of {name} are no JSON values.")


def _read_literals(call: str) -> tuple[list[Any], dict[str, Any]] | None:
    """The arguments of `call("7", count=2)`; None unless all are literals."""
    try:
        tree = ast.parse(call.strip().removesuffix(";"), mode="eval").body if len(call) <= _LONGEST else None
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            return None
        named = {each.arg: ast.literal_eval(each.value) for each in tree.keywords if each.arg is not None}
        return [ast.literal_eval(each) for each in tree.args], named
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _known(name: str, tools: Mapping[str, Any]) -> str | None:
    """The tool of this name, also if a client removed its punctuation."""
    return name if name in tools else next((each for each in tools if _letters(each) == name), None)


def _parse_plain_call(name: str, value: str, parameters: Mapping[str, Any]) -> Turn:
    """A name with its values in order, as words; a single argument takes them all.

    Some clients take the punctuation out of an action, so JSON arrives as `lookuporder orderid 1001`: words that begin
    with an argument's name are refused.
    """
    properties: dict[str, Any] = parameters.get("properties") or {}
    order: list[str] = parameters.get("required") or list(properties)
    if not value:
        return [TextCall(name, "{}")]
    plain, words = f"`Action: {' '.join([name, *map(str.upper, order)])}`", value.split()
    if len(words) > 1 and words[0] in {*properties, *map(_letters, properties)}:
        return Unreadable(f"The arguments of {name} arrived without their punctuation: write their values, {plain}.")
    values = [value] if len(order) == 1 else words
    if len(values) != len(order):
        return Unreadable(f"{name} needs {', '.join(order) or 'no arguments'}: write them as JSON, or as {plain}.")
    typed = {each: _of_type(text, properties.get(each)) for each, text in zip(order, values, strict=True)}
    return [TextCall(name, json.dumps(typed, ensure_ascii=False))]


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name))


def _of_type(text: str, schema: Any) -> Any:
    """A word converted to the schema's type; unchanged if that is impossible."""
    text = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
    if _type_of(schema) == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _type_of(schema: Any) -> str:
    kind: Any = cast("dict[str, Any]", schema).get("type") if isinstance(schema, dict) else None
    return kind if isinstance(kind, str) else "any"


def _find_json_calls(text: str, tools: Mapping[str, Any]) -> Iterator[TextCall]:
    """The calls among the JSON values in a text, in order."""
    decoder, at, text = json.JSONDecoder(), 0, text[:_LONGEST]
    while (begin := next((i for i in range(at, len(text)) if text[i] in "{["), None)) is not None:
        try:
            value, at = decoder.raw_decode(text, begin)
        except ValueError:
            at = begin + 1
            continue
        except RecursionError:  # the rest is nested as deeply
            return
        for each in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if (call := _json_call(each, tools)) is not None:
                yield call


def _json_call(value: Any, tools: Mapping[str, Any]) -> TextCall | None:
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    inner: Any = fields.get("function")
    if isinstance(inner, dict):
        return _json_call(inner, tools)
    name = next((fields[key] for key in _NAMES if isinstance(fields.get(key), str)), None)
    given = next((fields[key] for key in _ARGUMENTS if key in fields), cast("Any", {}))
    if not isinstance(name, str) or name not in tools:
        return None
    return TextCall(name, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))


def _how(tools: Mapping[str, Any]) -> str:
    return f"Write `Action: TOOL {{JSON}}` with one of {', '.join(tools)}, or `Answer: …` to end."
