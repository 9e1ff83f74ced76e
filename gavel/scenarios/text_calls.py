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

_ACTION = re.compile(r"^[^\S\n]*\**Action\**[^\S\n]*:\**[^\S\n]*", re.IGNORECASE | re.MULTILINE)
_INLINE = re.compile(r"\bAction:[^\S\n]*")
"""An action after a thought on the same line."""
_ANSWER = re.compile(r"^[^\S\n]*\**(?:Final )?Answer\**[^\S\n]*:\**[^\S\n]*", re.IGNORECASE | re.MULTILINE)
_THOUGHT = re.compile(r"^[^\S\n]*\**Thought\**[^\S\n]*:", re.IGNORECASE | re.MULTILINE)
_INPUT = re.compile(r"\s+(?:with\s+)?Action Input\s*:\s*|\s+(?=\{)", re.IGNORECASE)
_NEXT = re.compile(r"^\s*\**(?:Thought|Observation)\**\s*:", re.IGNORECASE | re.MULTILINE)
_PLAIN = re.compile(r"([A-Za-z_][\w.-]*)(?:\s+(.*))?", re.DOTALL)
_FENCE = re.compile(r"```(?:[\w-]*\n)?(.*?)```", re.DOTALL)
_NAMES = ("name", "function_name", "tool", "tool_name", "function", "action")
_ARGUMENTS = ("arguments", "args", "parameters", "input", "action_input")
_FINISH = ("finish", "final_answer", "answer")
_NONE: dict[str, Any] = {}
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
    tools: dict[str, Any] = {each["function"]["name"]: each["function"].get("parameters") or _NONE for each in schemas}
    said = text.strip().removesuffix("</s>").strip()
    marks = list(_ACTION.finditer(said))
    if not marks and _THOUGHT.match(said):
        marks = list(_INLINE.finditer(said))
    if not tools:
        return Words(_cut(said[marks[-1].end() :]) if marks else _answer(said) or said)
    if len(marks) > 1:
        return Unreadable("Write one action in a turn, and wait for what it gives.")
    if marks:
        return _marked(_cut(said[marks[0].end() :]), tools)
    if answer := _answer(said):
        return Words(answer)
    if calls := list(_find_json_calls(said, tools)):
        return calls
    if _THOUGHT.search(said):
        return Unreadable(f"The thought is followed by neither an action nor an answer. {_how(tools)}")
    if len(said) < _LONGEST and '"arguments"' in said and said.startswith(("{", "[", "```", "<tool_call>")):
        return Unreadable(f"The call is not valid JSON. {_how(tools)}")
    first = _PLAIN.match(said)
    if first is not None and _known(first[1], tools):
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


def _marked(action: str, tools: Mapping[str, Any]) -> Turn:
    if calls := list(_find_json_calls(action, tools)):
        return calls
    fenced = _FENCE.fullmatch(action)
    return _parse_action(fenced[1].strip() if fenced else action, tools)


def _parse_action(action: str, tools: Mapping[str, Any]) -> Turn:
    """Parses `name {…}`, `name with Action Input: {…}`, `name(…)`, `name value`, `finish …`."""
    head, *rest = _INPUT.split(action, maxsplit=1)
    if rest and head.strip() in (*tools, *_FINISH):
        return _with_input(head.strip(), rest[0].strip(), tools)
    if (called := _parse_code_call(action, tools)) is not None:
        return called
    match = _PLAIN.fullmatch(action)
    name, value = (match[1], (match[2] or "").strip()) if match else ("", "")
    if known := _known(name, tools):
        return _parse_plain_call(known, value, tools[known])
    if name in _FINISH:
        return Words(value)
    return Unreadable(f"There is no tool {action.partition(' ')[0][:60]!r}. {_how(tools)}")


def _known(name: str, tools: Mapping[str, Any]) -> str | None:
    """The tool of this name, also if a client removed its punctuation."""
    return name if name in tools else next((each for each in tools if _letters(each) == name), None)


def _with_input(name: str, given: str, tools: Mapping[str, Any]) -> Turn:
    try:
        value: Any = json.loads(given[:_LONGEST])
    except (ValueError, RecursionError):
        if name in tools and not given.startswith(("{", "[")):
            return _parse_plain_call(name, given, tools[name])
        return Unreadable(f"The input of {name} is not valid JSON.") if name in tools else Words(given)
    if name not in tools:
        return Words(_answer_in(value))
    if isinstance(value, dict):
        return [TextCall(name, json.dumps(value, ensure_ascii=False))]
    return _parse_plain_call(name, value if isinstance(value, str) else given, tools[name])


def _answer_in(value: Any) -> str:
    answer = cast("dict[str, Any]", value).get("answer", value) if isinstance(value, dict) else value
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _parse_code_call(action: str, tools: Mapping[str, Any]) -> Turn | None:
    """Parses `name("7", count=2)` with literals; None for any other form."""
    if "(" not in action or len(action) > _LONGEST:
        return None
    try:
        tree = ast.parse(action.strip().removesuffix(";"), mode="eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            return None
        positional = [ast.literal_eval(each) for each in tree.args]
        named = {each.arg: ast.literal_eval(each.value) for each in tree.keywords if each.arg is not None}
        name = tree.func.id
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    if name in _FINISH and name not in tools:
        return Words(" ".join(map(str, [*positional, *named.values()])))
    if name not in tools:
        return None
    order = list(cast("dict[str, Any]", tools[name].get("properties") or {}))
    if len(positional) > len(order):
        return Unreadable(f"{name} takes {len(order)} arguments, and {len(positional)} were given.")
    try:
        arguments = json.dumps({**dict(zip(order, positional, strict=False)), **named}, ensure_ascii=False)
    except (TypeError, ValueError):
        return Unreadable(f"The arguments of {name} are no JSON values.")
    return [TextCall(name, arguments)]


def _parse_plain_call(name: str, value: str, parameters: Mapping[str, Any]) -> Turn:
    """A name with its values in order, as words; a single argument takes them all.

    Some clients take the punctuation out of an action, so JSON arrives as `lookuporder orderid 1001`: where the words
    begin with an argument's name, each argument's name stands before its value.
    """
    properties: dict[str, Any] = parameters.get("properties") or {}
    required: list[str] = parameters.get("required") or []
    order = required or list(properties)
    if not value:
        return [TextCall(name, "{}")]
    given = _split_named_values(value, properties)
    if given is None:
        values = [value] if len(order) == 1 else value.split()
        if len(values) != len(order):
            plain = f"{name} {' '.join(each.upper() for each in order)}"
            return Unreadable(
                f"{name} needs {', '.join(order) or 'no arguments'}: write them as JSON, or as `{plain}`."
            )
        given = dict(zip(order, values, strict=True))
    typed = {each: _of_type(text, properties.get(each)) for each, text in given.items()}
    return [TextCall(name, json.dumps(typed, ensure_ascii=False))]


def _split_named_values(value: str, properties: Mapping[str, Any]) -> dict[str, str] | None:
    """The words after each argument's name; None if the first is no name, and if a name is repeated."""
    names = {_letters(each): each for each in properties}
    given: dict[str, list[str]] = {}
    for word in value.split():
        name = names.get(word) or (word if word in properties else None)
        if (name is None and not given) or name in given:
            return None
        if name is not None:
            if given and (before := given[next(reversed(given))]):
                before[-1] = before[-1].removesuffix(",")  # punctuation of the JSON object
            given[name] = []
        else:
            given[next(reversed(given))].append(word)
    return {name: " ".join(words) for name, words in given.items()} if all(given.values()) else None


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
    given: Any = next((fields[key] for key in _ARGUMENTS if key in fields), _NONE)
    if not isinstance(name, str) or name not in tools:
        return None
    return TextCall(name, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))


def _answer(said: str) -> str | None:
    marks = list(_ANSWER.finditer(said))
    return _cut(said[marks[-1].end() :]) if marks else None


def _cut(said: str) -> str:
    """The text without observations that the agent made up."""
    further = _NEXT.search(said)
    return (said[: further.start()] if further else said).strip()


def _how(tools: Mapping[str, Any]) -> str:
    return f"Write `Action: TOOL {{JSON}}` with one of {', '.join(tools)}, or `Answer: …` to end."
