"""Rows whose fields hold a prompt and answers, or a conversation: data sets, and a user's own tables.

    {"messages": [{"role": "user", "content": "Hi"}, …], "tools": […], "task": 7}     [{"role": "user", …}, …]
    {"prompt": "2 + 2?", "completion": "4", "label": true}                            {"prompt": …, "responses": […]}
    {"prompt": […], "chosen": […], "rejected": […]}                                   a group of two, rewards 1 and 0
    {"prompt": "2 + 2?", "response_a": "4", "response_b": "5", "model_a": …}          answers side by side

A side is text or messages (`side`), an attempt is what was asked and what was answered (`attempt`), and all other
fields are metadata. What a row asks is read by `prompt` in every format, and the answers of a field by `_split`.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from pydantic import JsonValue

from gavel.base.text import counted
from gavel.llm.types import Message
from gavel.scenarios.formats import chat
from gavel.scenarios.formats.chat import KNOWN_ROLES
from gavel.scenarios.formats.row import (
    ABSENT,
    INDEPENDENT,
    Attempt,
    Format,
    Found,
    Row,
    RowError,
    Source,
    WholeGroup,
    as_json,
    as_list,
    as_message,
    at,
    cell,
    check_item,
    first_of,
    is_list,
    is_object,
    refused,
    refusing,
    tools,
    trajectory,
)
from gavel.scenarios.formats.text import is_conversation, parsed
from gavel.scenarios.group import from_row
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import read_truth

SYSTEM = ("system", "system_prompt", "systemInstruction", "system_instruction", "instructions")
"""Fields with a system prompt of its own."""
UNANSWERED = "no turn of the assistant"
_TALKS = ("conversations", "messages", "conversation")
_ASKED = ("prompt", *_TALKS, "instruction", "question")
"""The columns by which data sets name a prompt; an instruction may have an input."""
OF_PROMPTS = (*_ASKED, "input", "history", *SYSTEM[:2])
_ANSWER = ("completion", "response", "output")
_SAMPLES = ("completions", "responses", "outputs", "generations", "samples")
TEXTS = ("text", "completion", "response", "content", "output", "generated_text", "answer")
_REWARDS = {f"{name}{end}": name for name in ("reward", "score", "label") for end in ("", "s")}


def attempt(
    row: Row,
    form: str,
    before: Sequence[Any] | None,
    answer: Sequence[Any],
    fields: Mapping[str, Any],
    *,
    task: Mapping[str, JsonValue] | None = None,
    **more: Any,
) -> Attempt:
    """The attempt that answers the messages `before`, of any vendor's form. None = where the prompt ends is not known.
    One without an answer has failed. `form`: empty = that of the messages; `more`: see `row.trajectory`."""
    if before is not None and not answer:
        more = {"status": "failed", "status_reason": UNANSWERED} | more
    said, found = chat.messages([*(before or ()), *answer], row.where)
    prompt = None if before is None else len(chat.messages(before, row.where)[0])
    return Attempt(
        trajectory(said, row.where, fields=fields, **more), row, form or found, dict(task) if task else None, prompt
    )


def prompt(row: Row, fields: Message) -> list[Any]:
    """Takes what a row asks, in any format of rows, out of its fields; empty if it asks nothing."""
    name = _given(fields, *_ASKED)
    if name not in fields:
        return []
    value = fields.pop(name)
    value = "" if value is None else value
    if name in _TALKS and is_answered(items := cell(value)):
        value, own = _part(items)
        fields |= {name: own} if own else {}
    if (turns := _dialogue(value)) and is_answered(turns[-1:]) and not turns[-1]["content"]:
        value = turns[:-1]  # it ends by opening the answer
    if name == "instruction" and isinstance(value, str):
        given = fields.pop("input", None)
        value = "\n\n".join(as_json(each) for each in (value, given) if each)
    return after_context(fields, side(row, value, "user", name))


def _part(items: list[Any]) -> tuple[list[Any], list[Any]]:
    """What a conversation asks, and its own answer, which is no part of the prompt."""
    end = max((number for number, each in enumerate(items, 1) if not is_answered([each])), default=0)
    return items[:end], items[end:]


def _given(fields: Message, *names: str) -> str:
    """The first of the fields that holds a value; else the first that is there; else empty."""
    there = [name for name in names if name in fields]
    return next((name for name in there if fields[name] is not None), next(iter(there), ""))


def system_message(value: Any) -> list[Message]:
    """A system prompt that stands in a field of its own, as a text, or as parts."""
    if not value or not isinstance(value, str | list | dict):
        return []
    if is_object(value):
        return [{"role": "system", "parts": value.get("parts", [value])}]
    return [{"role": "system", "content": value}]


def after_context(fields: Message, said: Sequence[Any]) -> list[Any]:
    """Messages after the system prompt and the history that stand in fields of their own, which it takes out: a history
    of messages, or of pairs of what the user and the assistant said."""
    own = [each for each in said[:1] if is_object(each) and "system" in (each.get("role"), each.get("from"))]
    turns = cell(fields.get("history"))
    if is_list(turns) and all(is_list(pair) and len(pair) == 2 for pair in turns):
        sides = (zip(("user", "assistant"), pair, strict=True) for pair in turns)
        turns = [{"role": role, "content": text} for pair in sides for role, text in pair]
    turns = turns if is_list(turns) and (not turns or is_conversation(turns)) else None
    if turns is not None:
        del fields["history"]
    return [*(own or _take_system(fields, SYSTEM[:2])), *(turns or []), *said[len(own) :]]


def _take_system(fields: Message, names: Sequence[str]) -> list[Message]:
    """The system prompt of a row. One word is a name instead: that of the system which was evaluated."""
    given = {name: fields.get(name) for name in names}
    name = next((n for n, it in given.items() if system_message(it) and not (isinstance(it, str) and is_word(it))), "")
    return system_message(fields.pop(name, None))


_SENTENCE = re.compile(r"\S\s+\S|[^\x00-\x7f]")
"""Words separated by spaces, or a script that may do without."""


def is_word(text: str) -> bool:
    """Whether a text is one word, such as a name or a label."""
    return not _SENTENCE.search(text)


def side(row: Row, value: Any, role: str, name: str) -> list[Any]:
    """Text or a number as one message, and messages (also as JSON text) unchanged. Raises `RowError` for anything
    else."""
    given = value = as_json(value) if isinstance(value, int | float) else value
    if isinstance(value, str) and _are_messages(as_list(items := parsed(value, row.where, name))):
        given = items
    if _are_parts(given):
        return [{"role": role, "content": given}]
    if not isinstance(given, str | list | dict) or given == [] or (is_object(given) and not is_conversation([given])):
        raise refused(row.where, f"{name}: it is neither text nor messages.", "Write text, or a list of messages.")
    return as_message(given, role)


def talk(row: Row, value: Any, role: str, names: Sequence[str] = ()) -> list[Any]:
    """The messages of any value: a conversation (also as JSON text, or under these names at any depth), the calls of
    one message, or else one message of `role` with its text or JSON. Raises `RowError` for a cut or printed one."""
    if value is None:
        return []
    payload = parsed(value, row.where, "messages")
    if found := find_conversation(payload, names):
        return [*(system_message(payload.get("system")) if is_object(payload, "messages") else ()), *found]
    if is_list(value) and value and all(is_object(call, "function") for call in value):
        return [{"role": "assistant", "content": None, "tool_calls": value}]
    if names and is_object(payload) and len(payload) == 1 and isinstance(only := next(iter(payload.values())), str):
        return [{"role": role, "content": only}]
    return [{"role": role, "content": as_json(value)}]


def find_conversation(payload: Any, names: Sequence[str]) -> list[Any]:
    """The conversation in a payload, at any depth; empty if there is none."""
    payload = cell(payload)
    if is_list(payload) and is_conversation(payload):
        return payload
    if is_list(payload) and len(payload) == 1:
        return find_conversation(payload[0], names)  # batches of one, as LangChain logs them
    if not is_object(payload):
        return []
    if is_conversation([payload]) and "finish_reason" not in payload:
        return [payload]
    found = (find_conversation(payload.get(name), names) for name in names)
    return next(filter(None, found), list[Any]())


_SPEAKER = re.compile(rf"(?:^|\n)\s*({'|'.join(KNOWN_ROLES)}): ?", re.IGNORECASE)


def _dialogue(value: Any) -> list[Message]:
    """The messages of a conversation in one text, as in Anthropic's HH data (`Human: … Assistant: …`); empty for
    anything else."""
    parts = _SPEAKER.split(value) if isinstance(value, str) else []
    roles = [KNOWN_ROLES[who.lower()] for who in parts[1::2]]
    if not {"user", "assistant"} <= set(roles) or parts[0].strip():
        return []
    return [{"role": role, "content": said.rstrip("\n")} for role, said in zip(roles, parts[2::2], strict=True)]


def holds_dialogue(text: str) -> bool:
    """Whether a text is a whole conversation, with its speakers' names."""
    return bool(_dialogue(text))


_TURN = ({"input", "question", "prompt", "instruction"}, {"output", "answer", "response", "completion"})
_SIDES_OF_TURN = [
    {*names, *(name for name, role in KNOWN_ROLES.items() if role == whose)}
    for whose, names in zip(("user", "assistant"), _TURN, strict=True)
]


def with_turns(row: Row, columns: Sequence[str] = ()) -> Row:
    """The row with the exchanges in its conversations, objects of what a user and an agent said, as messages."""
    if not is_object(row.value):
        return row
    turns = {name: _turns(row.value[name]) for name in (*_TALKS, "history", *columns) if name in row.value}
    return replace(row, value={**row.value, **{name: each for name, each in turns.items() if each}})


def _turns(value: Any) -> list[Message]:
    items = cell(value)
    if not is_list(items) or not items or is_conversation(items):
        return []
    if not all(is_object(each) and len(each) == 2 for each in items):
        return []
    asked, said = (next((name for name in items[0] if name in names), "") for names in _SIDES_OF_TURN)
    if not all(isinstance(each.get(asked), str) and isinstance(each.get(said), str) for each in items):
        return []
    roles = (("user", asked), ("assistant", said))
    return [{"role": role, "content": each[name]} for each in items for role, name in roles]


def offered_tools(body: Any) -> list[Message] | None:
    """The tools that a request offers."""
    if not is_object(body := cell(body)):
        return None
    config = body.get("toolConfig")
    given = body.get("tools", body.get("functions"))
    return tools(config["tools"] if given is None and is_object(config, "tools") else given)


def without(fields: Message, *used: str) -> Message:
    """The other fields."""
    return {name: value for name, value in fields.items() if name not in used}


def leaves(value: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    """The paths of all that stands in a list or an object and is neither, with its value."""
    for name, each in value.items() if is_object(value) else enumerate(value):
        if isinstance(each, dict | list):
            yield from leaves(each, f"{within}{name}.")
        else:
            yield f"{within}{name}", each


def is_answered(value: Any) -> bool:
    """Whether it is a conversation in which the assistant speaks."""
    items = value if is_list(value) and is_conversation(value) else []
    roles = (first_of(item, "role", "from", "type") for item in items)
    return any(KNOWN_ROLES.get(str(role).lower()) == "assistant" for role in roles)


def _are_messages(items: list[Any]) -> bool:
    return bool(items) and all(is_object(item, "role|from") for item in items)


def _are_parts(value: Any) -> bool:
    """Whether it is the content of one message, in parts of any vendor: texts, thoughts, calls."""
    items = as_list(value)
    return bool(items) and all(is_object(item, "type") and "role" not in item for item in items)


def are_several(value: Any) -> TypeGuard[list[Any]]:
    """Whether it is a list of texts, or of lists of messages, which are as many answers."""
    given = [each for each in as_list(value) if each is not None]
    return bool(given) and (all(isinstance(each, str) for each in given) or all(map(is_list, given)))


def _is_said(value: Any) -> bool:
    """Whether it is text, messages, or the parts of one."""
    is_talk = is_list(value) and (is_conversation(value) or _are_messages(value) or _are_parts(value))
    return isinstance(value, str) or is_talk


def _attempts(
    row: Row,
    source: Source,
    columns: Mapping[str, Any],
    fields: Message,
    form: str,
    task: Mapping[str, JsonValue] | None = None,
) -> Iterator[Attempt]:
    """An attempt for each answer in some columns, beside the row's other fields. An answer may be a whole conversation,
    which repeats what was asked."""
    for column, own_fields in _divide({**fields, **columns}, list(columns)).items():
        own_fields |= {"answer_column": column} if len(columns) > 1 else {}
        for place, value, own in _answers_of(row, column, columns[column], own_fields, form):
            offered, own = offered_tools(own), without(own, "tools", "functions", "toolConfig")
            asked = prompt(row, own)
            answer: list[Any] = []
            if value not in (None, []):
                answer = (not asked and _dialogue(value)) or side(row, value, "assistant", place)
                answer = answer if asked else after_context(own, answer)
            if not asked and not answer:
                source.leave_out(row, "answer that is null")
                continue
            ends = (asked[at:] for at in range(len(asked)))
            repeated = next((end for end in ends if len(answer) > len(end) and answer[: len(end)] == end), list[Any]())
            metrics = {INDEPENDENT: _PREFERRED[column]} if column in _PREFERRED else None
            more: dict[str, Any] = {"task": task, "tools": offered, "metrics": metrics}
            yield attempt(row, form, asked or None, answer[len(repeated) :], own, **more)


def _answers_of(row: Row, column: str, value: Any, fields: Message, form: str) -> Iterator[tuple[str, Any, Message]]:
    """Where the answers in a column stand, the answers, and the fields of each; a list beside it of as many rewards is
    split among them."""
    is_several = is_list(value) and (column in _SAMPLES or (form == TABLE and _are_rivals(value)))
    steps = fields.get("labels") if is_several else None
    if is_list(steps) and len(steps) == len(value) and all(isinstance(each, bool) for each in steps):
        raise refused(
            row.where,
            f"{column} may be the steps of one solution, each with a label (TRL's stepwise supervision).",
            "Join the steps to one completion. If each is an attempt, call the labels rewards.",
        )
    found = list(_split(row, column, value, is_several))
    split = [name for name, each in fields.items() if name in _REWARDS and len(as_list(each)) == len(found)]
    split = split if is_list(value) and all(place != column for place, *_ in found) else []
    for number, (place, answer, beside) in enumerate(found):
        own = {_REWARDS[name]: fields[name][number] for name in split}
        yield place, _as_said(answer) if form == TABLE else answer, without(fields, *split) | own | beside


def _split(row: Row, name: str, value: Any, is_several: bool = False) -> Iterator[tuple[str, Any, Message]]:
    """The answers in a value, where they stand, and the fields beside each: a list of answers is as many.

    Raises `RowError` for an object that holds text beside other values, unless one text has a known name: a label
    would be shown to the judge; and for lists of texts within a list, which may be one answer or many.
    """
    is_one = not isinstance(value, dict | list) or _is_said(value) or _are_messages([value])
    if not value or (is_one and not is_several):
        yield name, value, {}
    elif is_list(value) and value and all(is_list(it) and all(isinstance(text, str) for text in it) for it in value):
        raise refused(
            row.where,
            f"{name} holds lists of texts within a list.",
            f"Name the list whose texts are the answers: --answer-column {name}.0.",
        )
    elif is_list(value) and (is_several or _may_be_answer(value)):
        for number, each in enumerate(value):
            yield from _split(row, f"{name}.{number}", each)
    elif _may_be_answer(value) or _is_mixed(value):
        yield name, *_text(row, name, value)
    else:
        yield name, value, {}


def _is_mixed(value: Any) -> bool:
    """Whether texts stand beside values that are none."""
    texts = [isinstance(each, str) for _, each in leaves(value) if each is not None]
    return 0 < sum(texts) < len(texts)


def _may_be_answer(value: Any) -> bool:
    """Whether it is text, a message, an object with a text of a known name, nothing, or a list of these."""
    if is_list(value):
        return bool(value) and all(map(_may_be_answer, value))
    if is_object(value):
        return _are_messages([value]) or any(_is_said(value.get(name)) for name in TEXTS)
    return value is None or isinstance(value, str)


def _text(row: Row, name: str, answer: Any) -> tuple[Any, Message]:
    """What an answer that is an object says, and its other fields. Raises `RowError` where it is not plain which."""
    said = [key for key in TEXTS if is_object(answer) and _is_said(answer.get(key))]
    if is_object(answer) and len(said) == 1:
        return answer[said[0]], without(answer, said[0])
    texts = [path for path, text in leaves(answer) if isinstance(text, str)]
    said = said or (texts if len(texts) == 1 else [])
    named = (
        f"Name the one: --answer-column {shlex.quote(f'{name}.{said[0]}')}" if said else "Write it as text or messages"
    )
    raise refused(
        row.where,
        f"{name}: it is not plain which of its fields is the answer "
        f"({', '.join(map(str, answer)) if is_object(answer) else counted(len(answer), 'item')}).",
        f"{named}; or write the whole as JSON text, where all of it is the answer.",
    )


def _spoken(row: Row, items: Any) -> str:
    return "\n\n".join(as_json(each.get("content") or "") for each in chat.messages(items, row.where)[0]).strip()


def _with_references(found: Iterable[Attempt], source: Source, talks: Sequence[str] = _TALKS) -> list[Attempt]:
    """The attempts. The answers with which the conversations in other fields of their rows end are references, unless
    each of them is an answer of its row that is judged."""
    attempts = list(found)
    judged: dict[str, list[str]] = {}
    own: list[tuple[Attempt, str, str]] = []
    for each in attempts:
        judged.setdefault(each.row.where, []).append(_spoken(each.row, each.trajectory.messages()[-1:]))
        name = next((name for name in talks if is_answered(cell(each.trajectory.metadata.get(name)))), "")
        if name and not read_truth(each.trajectory.metadata, of_row=True).reference:
            own.append((each, name, _spoken(each.row, _part(cell(each.trajectory.metadata[name]))[1])))
    if all(not text or text in judged[each.row.where] for each, _, text in own):
        return attempts
    for each, name, text in own:
        del each.trajectory.metadata[name]
        each.trajectory.metadata["reference"] = text
    name, row = own[0][1], own[0][0].row
    source.notes.append(
        f"{counted(len({each.row.where for each, *_ in own}), 'row')} with {name} that end in another answer than what "
        f"is judged: it is the reference. To judge it instead: --answer-column {name}. First: {row.where}."
    )
    return attempts


def _is_completion(value: Any) -> bool:
    """Whether it is a prompt, as text or as messages without an answer, with its completion."""
    if is_object(value, "prompt|instruction|question", "completion|response") or _samples_name(value):
        return True
    if not is_object(value, "messages", "|".join(_ANSWER)) or not is_list(value["messages"]) or not _asks(value):
        return False
    return not is_answered(value["messages"]) or _is_said(value[_given(value, *_ANSWER)])


def _asks(fields: Message) -> bool:
    """Whether an answer may follow what a row asks: text, or messages that do not end with one."""
    asked = fields.get(_given(fields, *_ASKED))
    if not is_list(asked) or not asked:
        return isinstance(asked, str)
    return not is_answered(asked[-1:])


def _samples_name(value: Any) -> str:
    """The field that holds several answers to a row's prompt."""
    if not is_object(value, "prompt|messages|instruction|question"):
        return ""
    return next((name for name in _SAMPLES if is_list(value.get(name)) and value[name]), "")


def _answer_column(fields: Message) -> str:
    name = _samples_name(fields)
    return name if name and fields.get(_given(fields, "completion", "response")) is None else _given(fields, *_ANSWER)


def _read_answers(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    yield from _with_references((each for row in rows for each in _read_row(row, source)), source)


def _read_row(row: Row, source: Source) -> Iterator[Attempt]:
    """The attempts of a pair, of answers side by side, or of a row with one or several answers."""
    fields = _unfold(row.value)
    if names := _pair(fields) or _alike(fields):
        form, task = PAIRS.name if _pair(fields) else "answers side by side", {"pair": row.where}
    else:
        names, form, task = [_answer_column(fields)], COMPLETIONS.name, None
    yield from _attempts(row, source, {name: fields[name] for name in names}, fields, form, task)


COMPLETIONS = Format("TRL prompt/completion", ("prompt", "completion|response"), _is_completion, _read_answers)


_SIDES = (("chosen", "preferred_output"), ("rejected", "non_preferred_output"))
"""The answers of a pair, also by their names in OpenAI's preference data."""
_PREFERRED = {"chosen": 1.0, "preferred_output": 1.0, "rejected": 0.0, "non_preferred_output": 0.0}


def _pair(fields: Message) -> list[str]:
    """The columns with the chosen and the rejected answer."""
    found = [column for names in _SIDES if (column := _given(fields, *names))]
    return found if len(found) == len(_SIDES) else []


def _unfold(fields: Message) -> Message:
    """The fields with a pair's parts in columns of their own: the prompt may stand within `input`, and the chosen
    answer at the end of the messages, beside a `rejected_message`."""
    if is_object(asked := fields.get("input"), "messages") and _pair(fields):
        given = {name: asked[name] for name in ("messages", "tools") if name in asked}
        return {**without(fields, "input"), **given}
    if not is_list(fields.get("messages")) or _asks(fields) or _pair(fields):
        return fields
    texts = [name for name, each in fields.items() if isinstance(each, str) and name.partition("_")[2] in TEXTS]
    messages = [name for name, each in fields.items() if _are_messages(as_list(each) or [each])]
    others = [name for name in (*texts, *messages) if name.startswith("rejected_")]
    if len(others) != 1:
        return fields
    *before, last = fields["messages"]
    return {**without(fields, others[0]), "messages": before, "chosen": [last], "rejected": fields[others[0]]}


def _alike(value: Message) -> list[str]:
    """The columns that hold answers side by side, of one name but for a letter or number at its end: conversations, or
    texts and messages after what the row asks."""
    if is_object(value, "|".join((*_ANSWER, *_SAMPLES))):
        return []
    found: list[list[str]] = []
    for stem, columns in columns_by_stem(value).items():
        given = [value[name] for name in columns.values() if value[name] is not None]
        answers = (
            stem in TEXTS and _asks(value) and all(_is_said(each) or isinstance(each, int | float) for each in given)
        )
        if len(columns) > 1 and given and (answers or all(map(is_answered, given))):
            found.append(list(columns.values()))
    return found[0] if len(found) == 1 else []


_ENDING = re.compile(r"(.*[^\W\d_])(?:[_ -](?P<small>[a-z])|[_ -]?(?P<end>[A-Z]|\d+))")


def columns_by_stem(fields: Message) -> dict[str, dict[str, str]]:
    """The columns whose names end in a letter or number: name before it -> ending -> column."""
    stems: dict[str, dict[str, str]] = {}
    for name in fields:
        if found := _ENDING.fullmatch(name):
            stems.setdefault(found[1], {})[found["small"] or found["end"]] = name
    return stems


def _divide(fields: Message, columns: Sequence[str]) -> dict[str, Message]:
    """The other fields for each of some columns. `model_a` and `model_b` are the `model` of columns that end alike."""
    stems = columns_by_stem(fields)
    ends = next((ends for ends in stems.values() if {*columns} <= {*ends.values()}), dict[str, str]())
    ends = ends if len(columns) > 1 else {}
    parted = {stem: each for stem, each in stems.items() if ends and each.keys() == ends.keys()}
    rest = without(fields, *columns, *(name for each in parted.values() for name in each.values()))
    own = {
        name: {stem: fields[each[end]] for stem, each in parted.items() if each != ends} for end, name in ends.items()
    }
    return {name: rest | own.get(name, {}) for name in columns}


PAIRS = Format(
    "preference pairs",
    ("chosen|preferred_output", "rejected|non_preferred_output"),
    lambda value: is_object(value) and bool(_pair(_unfold(value)) or _alike(value)),
    _read_answers,
    task="pair",
)


_OWN = "trajectories|messages_and_choices"
_LISTS = ("messages", "conversations", "conversation", "contents", "items")


def _list_name(value: Any) -> str | None:
    """The field with a conversation."""
    if not is_object(value):
        return None
    is_items = is_list(value.get("items")) and is_conversation(value["items"])
    return next((name for name in _LISTS if name in value and (name != "items" or is_items)), None)


def _is_conversation_row(value: Any) -> bool:
    if is_list(value):
        return not value or is_conversation(value)
    return is_object(value, _OWN) or _list_name(value) is not None or _is_response(value)


def _is_response(value: Any) -> bool:
    is_whole = is_object(value, "input", "output") and is_list(value["output"])
    return is_whole and all(is_object(item, "type|role") for item in value["output"])


def _read_conversations(rows: Sequence[Row], source: Source) -> Iterator[Found]:
    if later := [row for row in rows if is_object(row.value) and row.value.get("previous_response_id")]:
        source.notes.append(
            f"{len(later):,} of the responses go on from an earlier one (previous_response_id), whose items their rows "
            f"do not hold: the judge does not see them. First: {later[0].where}."
        )
    beside = [row for row in rows if _is_beside(row)]
    if not all(map(_is_repeated, beside)):
        yield from _read_answers(beside, source)
        rows = [row for row in rows if not _is_beside(row)]
    for row in rows:
        if is_object(row.value, _OWN):
            yield _own(row)
        elif (name := _list_name(row.value)) and row.value[name] is None:
            source.leave_out(row, f"row without {name}")
        elif is_list(row.value) or name:
            yield from _read_choices(row)
        else:
            yield _response(row)


def _is_beside(row: Row) -> bool:
    """Whether a row has an answer beside a conversation, without tools, that ends with one of its own."""
    name = _list_name(row.value)
    items = as_list(row.value[name]) if name in _TALKS else []
    column = _given(row.value, *_ANSWER) if is_answered(items[-1:]) else ""
    answer = row.value[column] if column else None
    is_said = are_several(answer) or _is_said([answer] if is_object(answer) else answer)
    if not column or not (answer is None or is_said):
        return False
    turns = chat.messages(items, row.where)[0]
    return not any(each.get("tool_calls") or each["role"] == "tool" for each in turns)


def _is_repeated(row: Row) -> bool:
    """Whether the answers of such a row are in that of its conversation."""
    own = _spoken(row, row.value[_list_name(row.value)][-1:])
    column = _answer_column(row.value)
    said = [(place, each) for place, each, _ in _split(row, column, row.value[column]) if each not in (None, [])]
    return all(_spoken(row, side(row, each, "assistant", place)) in own for place, each in said)


def _own(row: Row) -> Found:
    with refusing(row.where):
        if "trajectories" in row.value:
            return WholeGroup(check_item(from_row(row.value), row.where), row, GROUPS)
        return Attempt(check_item(Trajectory.model_validate(row.value), row.where), row, "Gavel trajectories")


def _read_choices(row: Row) -> Iterator[Attempt]:
    """One attempt for each choice stored beside the request's messages; without choices, the messages themselves."""
    fields: Message = row.value if is_object(row.value) else {"messages": row.value}
    name = _list_name(fields) or "messages"
    choices = as_list(fields.get("choices"))
    if not all(is_object(choice, "message") for choice in choices):
        if not is_answered(fields[name]):
            raise refused(
                row.where,
                "its choices hold no message.",
                'A choice is {"message": {"role": "assistant", "content": "…"}}, or write a row for each '
                "answer, with the whole conversation as its messages.",
            )
        choices = []
    rest = without(fields, name, "tools", "functions", "toolConfig", *(("choices",) if choices else ()))
    given = as_message(fields[name], "user") if name == "contents" else fields[name]
    said, form = chat.messages(given, row.where)
    if said and said[0].get("role") not in ("system", "developer"):
        said = [*_take_system(rest, SYSTEM[:4]), *said]
    for choice in choices or [None]:
        ended: dict[str, Any] = {"status": "truncated"} if choice and choice.get("finish_reason") == "length" else {}
        before, answer = (said, [choice["message"]]) if choice else (None, said)
        yield attempt(row, form, before, answer, rest, tools=offered_tools(fields), **ended)


def _response(row: Row) -> Attempt:
    """The conversation of a response and its input."""
    fields: Message = row.value
    before = [*system_message(fields.get("instructions")), *as_message(fields["input"] or [], "user")]
    rest = without(fields, "input", "instructions", "output", "tools")
    earlier = fields.get("previous_response_id")
    task = {"previous_response_id": earlier} if earlier else None
    return attempt(row, chat.RESPONSES, before, fields["output"], rest, task=task, tools=tools(fields.get("tools")))


GROUPS = "Gavel groups"
CONVERSATIONS = Format(
    chat.OPENAI, ("messages|conversations|messages_and_choices",), _is_conversation_row, _read_conversations
)


TABLE = "prompt and answer columns"


@dataclass(frozen=True, slots=True)
class Columns:
    """The fields (dotted paths) with the prompt and the answers of a row, for names that no format knows."""

    prompt: str | None = None
    """None = `prompt` or `messages`, if answers are no whole conversations."""
    answers: Sequence[str] = ()
    """Fields that each hold an attempt. Empty = a pair, or the first of `completion`, `response`, `output`,
    `completions`, …"""

    @property
    def names(self) -> list[str]:
        return [*filter(None, [self.prompt]), *self.answers]

    def read(self, row: Row, known: Collection[str], source: Source) -> Iterator[Attempt]:
        """The attempts of a row; empty cells are counted. `known`: the fields of all rows.

        Raises `RowError` for a field that no row has.
        """
        fields: Message = row.value
        for name in self.names:
            fields = _beside(fields, name)
        if self.prompt:
            given = _column(row, [self.prompt], known, "--prompt-column")[1]
            fields = without(fields, self.prompt)
            if self.prompt != "prompt" and is_answered(as_list(given)[-1:]):
                given, fields[self.prompt] = _part(given)
            fields["prompt"] = _as_said(given)
        names = [(name,) for name in self.answers or _pair(fields) or _alike(fields)] or [(*_ANSWER, *_SAMPLES)]
        columns = dict(_column(row, each, known, "--answer-column") for each in names)
        asking = [name for name in _ASKED if name not in {column.partition(".")[0] for column in columns}]
        if not self.prompt and (any(name in known for name in asking) or not all(map(_is_whole, columns.values()))):
            if not any(name in known for name in asking):
                raise RowError(
                    f"{row.where}: no conversation that is taken apart is in {' and '.join(columns)}, and no column is "
                    "known to hold what was asked.",
                    f"Name it: --prompt-column COLUMN, of {', '.join(known)}. Or write a conversation as messages: "
                    '[{"role": "user", "content": "…"}, …].',
                )
            name, value = _column(row, asking, known, "--prompt-column")
            fields = {name: value, **fields}  # a row may lack what others have
        yield from _attempts(row, source, columns, fields, TABLE)


def _is_whole(value: Any) -> bool:
    return value is None or bool(_dialogue(value)) or (is_answered(value) and not _are_rivals(value))


def _beside(fields: Message, path: str) -> Message:
    """The fields without the object into which a path leads, if its name says that it is what was asked; what it holds
    besides has its path as name."""
    root, _, within = path.partition(".")
    if root not in OF_PROMPTS or not within or not is_object(held := fields.get(root)):
        return fields
    rest = {f"{root}.{name}": value for name, value in leaves(held) if not f"{name}.".startswith(f"{within}.")}
    return without(fields, root) | rest


def _column(row: Row, names: Sequence[str], known: Collection[str], option: str) -> tuple[str, Any]:
    """The first of the fields that the row has, and its value; None if only other rows have it."""
    for name in names:
        if (value := at(row.value, name)) is not ABSENT:
            return name, value
    if found := next((name for name in names if name in known), None):
        return found, None
    raise RowError(
        f"{row.where} has no column {' or '.join(names)}. Its columns: {', '.join(known) or 'none'}.",
        f"Name one of them: {option} COLUMN.",
    )


def _are_rivals(value: Any) -> bool:
    """Whether messages are several answers rather than one: all are the assistant's, and none has calls."""
    items = as_list(value)
    return len(items) > 1 and all(is_answered([each]) and not each.get("tool_calls") for each in items)


def _as_said(value: Any) -> Any:
    """Messages as they are, anything else as its text."""
    if value in (None, []) or _is_said(value):
        return value
    return [value] if _are_messages([value]) else as_json(value)


def read_columns(rows: Sequence[Row], columns: Columns, source: Source) -> Iterator[Attempt]:
    """The attempts of a table whose columns a user named."""
    if alone := next((row for row in rows if not is_object(row.value)), None):
        raise RowError(f"{alone.where} is no object, so it has no columns.", "Leave the options of columns out.")
    if columns.prompt is not None and columns.prompt in columns.answers:
        raise RowError(f"{columns.prompt} is named as prompt and as answer.", "Name another column for one of them.")
    known = dict.fromkeys(name for row in rows for name in row.value)
    for name in columns.names:  # paths may lead into objects
        above = name.rpartition(".")[0]
        inner = [at(row.value, above) for row in rows] if above else []
        known |= dict.fromkeys(f"{above}.{each}" for value in inner if is_object(value) for each in value)
        known |= dict.fromkeys(name for row in rows if at(row.value, name) is not ABSENT)
    named: dict[str, set[str]] = {}
    for within, number in (match.groups() for name in columns.names if (match := _ITEM.match(name))):
        named.setdefault(within, set()).add(number)
    for within, numbers in named.items():
        for row in rows:
            left = len(as_list(at(row.value, within))) - len(numbers)
            if left > 0:
                source.leave_out(row, f"item of {within}, which --answer-column {within} may read", left)
    found = (replace(each, row=row, form=TABLE) for row in rows for each in columns.read(row, known, source))
    within = {root for root, _, path in (name.partition(".") for name in columns.answers) if path}
    talks = dict.fromkeys((*_TALKS, *filter(None, [columns.prompt])))
    yield from _with_references(found, source, [name for name in talks if name not in within])


_ITEM = re.compile(r"(.+?)\.(\d+)(?:\.|$)")
"""A path into a list: the list's own, and the item's number."""
