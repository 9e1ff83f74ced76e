"""Rows whose fields hold a prompt and answers, or a conversation: data sets, evaluation results, a user's own tables.

    {"messages": [{"role": "user", "content": "Hi"}, …], "tools": […], "task": 7}     [{"role": "user", …}, …]
    {"prompt": "2 + 2?", "completion": "4", "label": true}                            {"prompt": …, "responses": […]}
    {"prompt": […], "chosen": […], "rejected": […]}                                   a group of two, rewards 1 and 0
    {"prompt": {"role": "prompter", "text": "2 + 2?", "replies": [{"role": …}, …]}}   a tree: each branch an attempt
    {"prompt": {"raw": "2 + 2?"}, "response": {"output": "4"}, "provider": {…}}       promptfoo
    {"input": "2 + 2?", "actualOutput": "4", "metricsData": [{…}]}                    DeepEval
    {"user_input": "2 + 2?", "response": "4", "retrieved_contexts": ["…"]}            ragas

A side is text or messages (`side`), an attempt is what was asked and what was answered (`attempt`), and all other
fields are metadata. The expected answer of an evaluation becomes the `reference`; retrieved passages, and the tools of
a test case, become calls with results before the answer.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    as_number,
    at,
    check_item,
    first_line,
    first_of,
    is_list,
    is_object,
    refused,
    refusing,
    tools,
    trajectory,
    with_single_score,
)
from gavel.scenarios.formats.text import PRINTED, cell, is_conversation, is_printed
from gavel.scenarios.group import from_row
from gavel.scenarios.trajectory import Trajectory

SYSTEM = ("system", "system_prompt", "systemInstruction", "system_instruction", "instructions")
"""Fields with a system prompt of its own."""


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


UNANSWERED = "no turn of the assistant"


def system_message(value: Any) -> list[Message]:
    """A system prompt that stands in a field of its own, as a text, or as parts."""
    if not value or not isinstance(value, str | list | dict):
        return []
    if is_object(value):
        return [{"role": "system", "parts": value.get("parts", [value])}]
    return [{"role": "system", "content": value}]


_PAIR = ("user", "assistant")
_TALKS = ("conversations", "messages", "conversation")
_ASKED = ("prompt", *_TALKS, "instruction", "question")
"""The columns by which data sets name a prompt; an instruction may have an input."""
OF_PROMPTS = (*_ASKED, "input", "history", *SYSTEM[:2])


def prompt(row: Row, fields: Message) -> list[Any]:
    """Takes what a row asks, in any format of rows, out of its fields; empty if it asks nothing."""
    name = _given(fields, *_ASKED)
    if name not in fields:
        return []
    value = fields.pop(name)
    value = "" if value is None else value
    if name in _TALKS and is_answered(items := cell(value)):
        value, fields[name] = _part(items)
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
        if name and "reference" not in each.trajectory.metadata:
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


def _given(fields: Message, *names: str) -> str:
    """The first of the fields that holds a value; else the first that is there; else empty."""
    there = [name for name in names if name in fields]
    return next((name for name in there if fields[name] is not None), next(iter(there), ""))


def after_context(fields: Message, said: Sequence[Any]) -> list[Any]:
    """Messages after the system prompt and the history that stand in fields of their own, which it takes out: a history
    of messages, or of pairs of what the user and the assistant said."""
    own = [each for each in said[:1] if is_object(each) and "system" in (each.get("role"), each.get("from"))]
    told = None if own else next((name for name in SYSTEM[:2] if system_message(fields.get(name))), None)
    turns = cell(fields.get("history"))
    if is_list(turns) and all(is_list(pair) and len(pair) == 2 for pair in turns):
        turns = [{"role": role, "content": said} for pair in turns for role, said in zip(_PAIR, pair, strict=True)]
    turns = turns if is_list(turns) and (not turns or is_conversation(turns)) else None
    if turns is not None:
        del fields["history"]
    system = own or (system_message(fields.pop(told)) if told else [])
    return [*system, *(turns or []), *said[len(own) :]]


def side(row: Row, value: Any, role: str, name: str) -> list[Any]:
    """Text or a number as one message, and messages (also as JSON text) unchanged. Raises `RowError` for anything
    else."""
    given = value = as_json(value) if isinstance(value, int | float) else value
    if isinstance(value, str) and is_list(items := cell(value)) and _are_messages(items):
        given = items
    elif isinstance(value, str) and is_printed(value):
        raise refused(row.where, f"{name}: it is text, and no JSON list.", PRINTED)
    if not isinstance(given, str | list | dict) or given == [] or (is_object(given) and not is_conversation([given])):
        raise refused(row.where, f"{name}: it is neither text nor messages.", "Write text, or a list of messages.")
    return as_message(given, role)


def talk(row: Row, value: Any, role: str, names: Sequence[str] = ()) -> list[Any]:
    """The messages of any value: a conversation (also as JSON text, or under these names at any depth), the calls of
    one message, or else one message of `role` with its text or JSON. Raises `RowError` for a cut or printed one."""
    payload = cell(value)
    if payload is None or (names and payload in ("", {}, [])):
        return []
    if isinstance(payload, str) and is_printed(payload):
        raise refused(row.where, "it holds text, and no JSON list.", PRINTED)
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


def _are_messages(items: list[Any]) -> bool:
    return bool(items) and all(is_object(item, "role|from") for item in items)


def without(fields: Message, *used: str) -> Message:
    """The other fields."""
    return {name: value for name, value in fields.items() if name not in used}


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
        yield from _read_completions(beside, source)
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
    return all(_spoken(row, _answer(row, answer, name)) in own for name, answer, _ in _samples(row))


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
        told = next((each for each in SYSTEM[:4] if system_message(rest.get(each))), "")
        said = [*system_message(rest.pop(told, None)), *said]
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


def offered_tools(body: Any) -> list[Message] | None:
    """The tools that a request offers."""
    if not is_object(body := cell(body)):
        return None
    config = body.get("toolConfig")
    given = body.get("tools", body.get("functions"))
    return tools(config["tools"] if given is None and is_object(config, "tools") else given)


GROUPS = "Gavel groups"
CONVERSATIONS = Format(
    chat.OPENAI, ("messages|conversations|messages_and_choices",), _is_conversation_row, _read_conversations
)


_ANSWER = ("completion", "response", "output")
_SAMPLES = ("completions", "responses", "outputs", "generations", "samples")
TEXTS = ("text", "completion", "response", "content", "output", "generated_text", "answer")
_REWARDS = {f"{name}{end}": name for name in ("reward", "score", "label") for end in ("", "s")}


def _is_completion(value: Any) -> bool:
    """Whether it is a prompt, as text or as messages without an answer, with its completion."""
    if is_object(value, "prompt|instruction|question", "completion|response") or _samples_name(value) is not None:
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


def _samples_name(value: Any) -> str | None:
    """The field that holds several answers to a row's prompt."""
    if not is_object(value, "prompt|messages|instruction|question"):
        return None
    return next((name for name in _SAMPLES if is_list(value.get(name)) and value[name]), None)


_PARTS = "role|from|type"
"""Fields of a message, or of a part or an item of one, and of no answer with scores."""
Side = tuple[str, Any, Message]
"""Where an answer stands, the answer, and the fields that are of it, with those of what was asked."""


def _attempts(
    row: Row, source: Source, sides: Iterable[Side], form: str, task: dict[str, JsonValue] | None = None
) -> Iterator[Attempt]:
    """An attempt for each answer. One may be a whole conversation, which repeats what was asked."""
    for name, value, own in sides:
        offered, asked = tools(own.pop("tools", None)), prompt(row, own)
        answer = _answer(row, value, name, alone=not asked)
        if not asked and not answer:
            source.leave_out(row, "answer that is null")
            continue
        ends = (asked[at:] for at in range(len(asked)))
        repeated = next((end for end in ends if len(answer) > len(end) and answer[: len(end)] == end), list[Any]())
        metrics = {INDEPENDENT: _SIDES[name][1]} if form == PAIRS.name else None
        yield attempt(row, form, asked or None, answer[len(repeated) :], own, task=task, tools=offered, metrics=metrics)


def _samples(row: Row) -> Iterator[Side]:
    """The answers of a row with one or several; a list of as many rewards is split among them."""
    fields: Message = row.value
    name = _samples_name(fields)
    if name is None or fields.get(_given(fields, "completion", "response")) is not None:
        name = _given(fields, *_ANSWER)
        given = as_list(fields[name])
        are_objects = given and all(is_object(each, "|".join(TEXTS)) and not is_object(each, _PARTS) for each in given)
        if not are_several(given) and not are_objects:
            yield name, fields[name], without(fields, name)
            return
    samples: list[Any] = fields[name]
    split = {key: value for key, value in fields.items() if key in _REWARDS and len(as_list(value)) == len(samples)}
    for number, sample in enumerate(samples):
        own = without(fields, name, *split) | {_REWARDS[key]: value[number] for key, value in split.items()}
        if is_object(sample) and not _are_messages([sample]):
            sample, others = _text(row, f"{name}.{number}", sample)
            own |= others
        yield f"{name}.{number}", sample, own


def _read_completions(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    found = (each for row in rows for each in _attempts(row, source, _samples(row), COMPLETIONS.name))
    yield from _with_references(found, source)


COMPLETIONS = Format("TRL prompt/completion", ("prompt", "completion|response"), _is_completion, _read_completions)


_SIDES = {"chosen": ("preferred_output", 1.0), "rejected": ("non_preferred_output", 0.0)}
"""The answers of a pair: their names in OpenAI's preference data, and their rewards."""
_SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")


def _read_pairs(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    yield from _with_references((each for row in rows for each in _read_pair(row, source)), source)


def _read_pair(row: Row, source: Source) -> Iterator[Attempt]:
    fields: Message = row.value
    if is_object(asked := fields.get("input"), "messages"):
        given = {name: asked[name] for name in ("messages", "tools") if name in asked}
        fields = {**without(fields, "input"), **given}
    form = PAIRS.name if _pair(fields) else SIDE_BY_SIDE
    yield from _attempts(row, source, _sides(fields), form, {"pair": row.where})


def _sides(fields: Message) -> Iterator[Side]:
    """The answers of a row, with their sides or columns, and the other fields that are of each."""
    pair = _pair(fields)
    if pair.get("chosen") == "messages":
        *asked, last = fields["messages"]
        fields, pair = {**fields, "messages": asked, "chosen": [last]}, {**pair, "chosen": "chosen"}
    columns = pair or {name: name for name in _alike(fields)}
    of_column = _divide(fields, list(columns.values()))
    for name, column in columns.items():
        for value in fields[column] if are_several(fields[column]) else [fields[column]]:
            yield name, value, {**of_column[column], "preference" if pair else "answer_column": name}


def _pair(value: Any) -> dict[str, str]:
    """The columns with the chosen and the rejected answer. The chosen one may be the last of the messages, beside a
    `rejected_message`."""
    if not is_object(value):
        return {}
    found = {name: column for name, (other, _) in _SIDES.items() if (column := _given(value, name, other))}
    if not found and is_list(value.get("messages")) and not _asks(value):
        others = [
            name for name, each in value.items() if name.startswith("rejected_") and _is_message_or_text(name, each)
        ]
        found = {"chosen": "messages", "rejected": others[0]} if len(others) == 1 else {}
    return found if len(found) == len(_SIDES) else {}


def _is_message_or_text(name: str, value: Any) -> bool:
    return _are_messages(as_list(value) or [value]) or (isinstance(value, str) and name.partition("_")[2] in TEXTS)


def _alike(value: Any) -> list[str]:
    """The columns that hold answers side by side, of one name but for a letter or number at its end: conversations, or
    texts and messages after what the row asks."""
    if not is_object(value):
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
    ends = next(
        (ends for ends in stems.values() if len(columns) > 1 and {*columns} <= {*ends.values()}), dict[str, str]()
    )
    parted = {stem: each for stem, each in stems.items() if ends and each.keys() == ends.keys()}
    rest = without(fields, *columns, *(name for each in parted.values() for name in each.values()))
    own = {
        name: {stem: fields[each[end]] for stem, each in parted.items() if each != ends} for end, name in ends.items()
    }
    return {name: rest | own.get(name, {}) for name in columns}


def is_answered(value: Any) -> bool:
    """Whether it is a conversation in which the assistant speaks."""
    roles = (
        [first_of(item, "role", "from", "type") for item in value] if is_list(value) and is_conversation(value) else []
    )
    return any(KNOWN_ROLES.get(str(role).lower()) == "assistant" for role in roles)


def are_rivals(value: Any) -> bool:
    """Whether messages are several answers rather than one: all are the assistant's, and none has calls."""
    items = as_list(value)
    return len(items) > 1 and all(is_answered([each]) and not each.get("tool_calls") for each in items)


def are_several(value: Any) -> TypeGuard[list[Any]]:
    """Whether it is a list of texts, or of lists of messages, which are as many answers."""
    given = [each for each in as_list(value) if each is not None]
    return bool(given) and (all(isinstance(each, str) for each in given) or all(map(is_list, given)))


def _answer(row: Row, value: Any, name: str, *, alone: bool = False) -> list[Any]:
    """An answer, empty for null; one that stands alone may be a conversation in one text, as in Anthropic's HH data."""
    if value is None or value == []:
        return []
    return (_dialogue(value) if alone else []) or side(row, value, "assistant", name)


def _dialogue(value: Any) -> list[Message]:
    """The messages of a conversation in one text, as in Anthropic's HH data; empty for anything else."""
    parts = _SPEAKER.split(value) if isinstance(value, str) else []
    if len(parts) < 3 or parts[0].strip():
        return []
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return [{"role": "user" if who == "Human" else "assistant", "content": said} for who, said in pairs]


def _tree_name(value: Any) -> str:
    """The field that holds a message with the messages that answer it, as OpenAssistant's trees have it."""
    fields = value if is_object(value) else {}
    return next((name for name, each in fields.items() if is_object(each, "role") and _replies(each)), "")


def _replies(message: Message) -> list[Message]:
    lists = (each for each in message.values() if is_list(each) and each and all(is_object(it, "role") for it in each))
    return next(lists, list[Message]())


def _is_node(value: Any) -> bool:
    """Whether it is a message that tells which one it answers; a table may omit that of the first."""
    return is_object(value, "message_id", "parent_id|message_tree_id", "role", "text|content")


def _read_trees(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    apart = [row for row in rows if _is_node(row.value)]
    nodes: dict[Any, Message] = {row.value["message_id"]: {**row.value, "replies": []} for row in apart}
    roots = [(row, row.value[_tree_name(row.value)]) for row in rows if not _is_node(row.value)]
    for row in apart:
        node, above = nodes[row.value["message_id"]], row.value.get("parent_id")
        if above is None:
            roots.append((row, node))
        elif above in nodes:
            nodes[above]["replies"].append(node)
        else:
            source.leave_out(row, "message whose parent is not in the file")
    for row, root in roots:
        yield from _branches(row, [], root)


def _branches(row: Row, before: Sequence[Message], message: Message) -> Iterator[Attempt]:
    """The answers to a message and to all that follow it, each after what stands above it."""
    is_answer = KNOWN_ROLES.get(str(message["role"]).lower()) == "assistant"
    said: Message = {"role": "assistant" if is_answer else "user", "content": first_of(message, *TEXTS)}
    if is_answer:
        kept = {name: each for name, each in message.items() if not isinstance(each, list | dict)}
        yield attempt(row, TREES.name, before, [said], without(kept, "role", *TEXTS))
    for reply in _replies(message):
        yield from _branches(row, [*before, said], reply)


TREES = Format(
    "message trees",
    ("message_tree_id", "prompt"),
    lambda value: bool(_tree_name(value)) or _is_node(value),
    _read_trees,
)

SIDE_BY_SIDE = "answers side by side"
PAIRS = Format(
    "preference pairs",
    ("chosen|preferred_output", "rejected|non_preferred_output"),
    lambda value: bool(_pair(value) or (not is_object(value, "|".join((*_ANSWER, *_SAMPLES))) and _alike(value))),
    _read_pairs,
    task="pair",
)


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
        if self.prompt and not self.answers:
            asked = _column(row, [self.prompt], known, "--prompt-column")[1]
            whole = replace(row, value={**without(row.value, self.prompt), "prompt": _as_said(asked)})
            if PAIRS.fits(whole.value):
                if asked is None:
                    source.leave_out(row, f"row without {self.prompt}")
                else:
                    yield from _read_pair(whole, source)
                return
        answers = [(name,) for name in self.answers] or [(*_ANSWER, *_SAMPLES)]
        columns = [_column(row, names, known, "--answer-column") for names in answers]
        fields = _divide(row.value, [name for name, _ in columns])
        names = (self.prompt,) if self.prompt else [each for each in _ASKED[:4] if each not in self.answers]
        is_whole = all(value is None or (is_answered(value) and not are_rivals(value)) for _, value in columns)
        if is_whole and not self.prompt and not any(name in known for name in names):
            for name, value in columns:
                if value is None:
                    source.leave_out(row, f"row without {name}")
                else:
                    own = {"answer_column": name, **fields[name], "messages": value}
                    yield from _read_choices(Row(row.where, own))
            return
        asked, prompt = _column(row, names, known, "--prompt-column")
        said: Message = {}
        if asked != "prompt" and is_answered(as_list(prompt)[-1:]):
            prompt, said[asked] = _part(prompt)
        found = [(name, *answer) for name, value in columns for answer in _split_answers(row, name, value)]
        sides: list[Side] = []
        for column, name, answer, others in found:
            if answer is None or prompt is None:
                source.leave_out(row, f"row without {name if answer is None else asked}")
                continue
            own = {**without(fields[column], asked), **others, **said, "prompt": _as_said(prompt)}
            sides.append((name, _as_said(answer), own | ({"answer_column": name} if len(found) > 1 else {})))
        yield from _attempts(row, source, sides, TABLE)


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


def _split_answers(row: Row, name: str, value: Any) -> list[tuple[str, Any, Message]]:
    """The answers of a column, where they stand, and the fields beside each: a list of answers is as many.

    Raises `RowError` for an object that holds text beside other values, unless one text has a known name: a label
    would be shown to the judge; and for lists of texts within a list, which may be one answer or many.
    """
    rivals = are_rivals(value)
    if not isinstance(value, dict | list) or not value or (not rivals and _are_messages(as_list(value) or [value])):
        return [(name, value, {})]
    if is_list(value) and all(is_list(each) and all(isinstance(text, str) for text in each) for each in value):
        raise refused(
            row.where,
            f"{name} holds lists of texts within a list.",
            f"Name the list whose texts are the answers: --answer-column {name}.0.",
        )
    if is_list(value) and (rivals or _may_be_answer(value)):
        return [answer for n, each in enumerate(value) for answer in _split_answers(row, f"{name}.{n}", each)]
    texts = [each for _, each in leaves(value) if each is not None]
    if _may_be_answer(value) or 0 < sum(isinstance(each, str) for each in texts) < len(texts):
        return [(name, *_text(row, name, value))]
    return [(name, value, {})]


def _may_be_answer(value: Any) -> bool:
    """Whether it is text, a message, an object with a text of a known name, nothing, or a list of these."""
    if is_list(value):
        return bool(value) and all(map(_may_be_answer, value))
    fields = is_object(value) and (_are_messages([value]) or any(_is_said(value.get(name)) for name in TEXTS))
    return value is None or isinstance(value, str) or fields


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


def leaves(value: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    """The paths of all that stands in a list or an object and is neither, with its value."""
    for name, each in value.items() if is_object(value) else enumerate(value):
        if isinstance(each, dict | list):
            yield from leaves(each, f"{within}{name}.")
        else:
            yield f"{within}{name}", each


def _is_said(value: Any) -> bool:
    return isinstance(value, str) or (is_list(value) and _are_messages(value))


def _as_said(value: Any) -> Any:
    """Messages as they are, anything else as its text."""
    if _is_said(value):
        return value
    return [value] if _are_messages([value]) else as_json(value)


def read_columns(rows: Sequence[Row], columns: Columns, source: Source) -> Iterator[Attempt]:
    """The attempts of a table whose columns a user named."""
    objects = [row.value for row in rows if is_object(row.value)]
    known = dict.fromkeys(name for value in objects for name in value)
    for name in columns.names:  # paths may lead into objects
        above = name.rpartition(".")[0]
        inner = [at(value, above) for value in objects] if above else []
        known |= dict.fromkeys(f"{above}.{each}" for value in inner if is_object(value) for each in value)
        known |= dict.fromkeys(name for value in objects if at(value, name) is not ABSENT)
    if alone := next((row for row in rows if not is_object(row.value)), None):
        raise RowError(f"{alone.where} is no object, so it has no columns.", "Leave the options of columns out.")
    named: dict[str, set[str]] = {}
    for within, number in (match.groups() for name in columns.names if (match := _ITEM.match(name))):
        named.setdefault(within, set()).add(number)
    for within, numbers in named.items():
        for row in rows:
            left = len(as_list(at(row.value, within))) - len(numbers)
            if left > 0:
                source.leave_out(row, f"item of {within}, which --answer-column {within} may read", left)
    found = (replace(each, row=row, form=TABLE) for row in rows for each in columns.read(row, known, source))
    yield from _with_references(found, source, (*_TALKS, *filter(None, [columns.prompt])))


TABLE = "prompt and answer columns"
_ITEM = re.compile(r"(.+?)\.(\d+)(?:\.|$)")
"""A path into a list: the list's own, and the item's number."""


_TELLING = ("equals", "similar", "factuality", "model-graded-factuality")
"""promptfoo's assertions whose value is the expected answer."""
_CALL_FAILED = 2
"""promptfoo's `failureReason` of a call that failed; 1 is an assertion's, which also fills `error`."""


def _read_promptfoo(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        value: Message = row.value
        prompt, provider, output = value["prompt"], value.get("provider"), value.get("response")
        test: Message = value.get("testCase") or {}
        output: Any = output.get("output") if is_object(output) else output
        ended: dict[str, Any] = {}
        if value.get("failureReason") == _CALL_FAILED or output is None:
            ended = {"status": "failed", "status_reason": first_line(value.get("error") or "it has no output")}
        asserted = [each for each in as_list(test.get("assert")) if is_object(each, "type", "value")]
        expected = (each["value"] for each in asserted if each["type"] in _TELLING and isinstance(each["value"], str))
        fields = {
            "provider": (provider.get("label") or provider.get("id")) if is_object(provider) else provider,
            "prompt": prompt.get("label"),
            **{name: value.get(name) for name in ("testIdx", "vars", "score", "success")},
            **{"description": test.get("description"), "reference": next(expected, None)},
        }
        fields = {name: each for name, each in fields.items() if each not in (None, "")}
        answer = [] if output is None else talk(row, output, "assistant")
        more: dict[str, Any] = {
            "tools": offered_tools(prompt.get("config")),
            "metrics": value.get("namedScores"),
            **ended,
        }
        yield attempt(row, PROMPTFOO.name, talk(row, prompt["raw"], "user"), answer, fields, **more)


PROMPTFOO = Format(
    "promptfoo results",
    ("prompt", "provider", "testIdx", "vars"),
    lambda value: is_object(value, "prompt", "provider", "vars|testIdx|testCase") and is_object(value["prompt"], "raw"),
    _read_promptfoo,
)


_EARLIER = {
    **{"question": "user_input", "answer": "response"},
    **{"contexts": "retrieved_contexts", "ground_truth": "reference"},
}
"""The columns' names in ragas before 0.2."""
_FACTS = ("reference", "expected_output", "expected_outcome", "context", "reference_contexts")


def _read_cases(rows: Sequence[Row], source: Source, is_ragas: bool) -> Iterator[Attempt]:
    """DeepEval's test cases, in camel case (test runs) or snake case, and ragas' samples."""
    for row in rows:
        given: Message = {_snake(name): value for name, value in row.value.items()}
        if is_ragas and "user_input" not in given:
            given = {_EARLIER.get(name, name): value for name, value in given.items()}
        fields = {name: value for name, value in given.items() if value not in (None, "", [])}
        asked, answered = ("user_input", "response") if is_ragas else ("input", "actual_output")
        before = [*system_message(fields.pop("chatbot_role", None)), *_side(row, fields, asked, "user")]
        turns = as_list(fields.pop("turns", None))
        used = list(_used(fields))
        if turns:
            said = [each for turn in turns if is_object(turn, "role") for each in _turn(row, turn)]
        elif is_ragas and any(each.get("role") == "assistant" for each in chat.messages(before, row.where)[0]):
            said, turns = [], before
        elif given.get(answered) is not None and (is_ragas or answered in fields):
            said = [*used, *_side(row, fields, answered, "assistant")]
        else:
            source.leave_out(row, "sample without a response" if is_ragas else "test case without an output")
            continue
        measured = [each for each in as_list(fields.pop("metrics_data", None)) if is_object(each, "name")]
        scores = {str(each["name"]): each.get("score") for each in measured}
        scores = without(fields, "reference") if is_ragas else scores
        numbers = {name: number for name, each in scores.items() if (number := as_number(each)) is not None}
        facts = [fact for name in _FACTS for fact in _listed(fields.get(name)) if fact]
        kept = without(fields, "context")
        if facts:
            kept["reference"] = "\n\n".join(map(as_json, facts))
        form = RAGAS.name if is_ragas else DEEPEVAL.name
        metrics = with_single_score(numbers)
        yield attempt(row, form, None if turns else before, [*before, *said] if turns else said, kept, metrics=metrics)


def _turn(row: Row, turn: Message) -> Iterator[Message]:
    fields = {_snake(name): each for name, each in turn.items() if each is not None}
    yield from _used(fields)
    yield from _side(row, fields, "content", fields["role"])


def _side(row: Row, fields: Message, name: str, role: str) -> list[Any]:
    """Takes a field's messages out of the row. Raises `RowError` for anything but text or messages."""
    value = fields.pop(name, [])
    return side(row, value, role, name) if value != [] else []


def _used(fields: Message) -> Iterator[Message]:
    """Takes an assistant's retrievals and calls before its answer out of the fields."""
    passages = _listed(fields.pop("retrieval_context", None) or fields.pop("retrieved_contexts", None))
    called = [{"name": "retrieve", "output": "\n\n".join(map(as_json, passages))}] if passages else []
    for call in [*called, *as_list(fields.pop("tools_called", None))]:
        own = {_snake(name): each for name, each in call.items()} if is_object(call) else {"name": call}
        made = {"name": str(own.get("name")), "arguments": own.get("input_parameters")}
        yield {"role": "assistant", "content": None, "tool_calls": [made]}
        if own.get("output") is not None:
            yield {"role": "tool", "name": own.get("name"), "content": as_json(own["output"])}


def _listed(value: Any) -> list[Any]:
    return as_list(value) or ([value] if value else [])


def _snake(name: str) -> str:
    """`actualOutput` -> `actual_output`."""
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _is_test_case(value: Any) -> bool:
    if is_object(value, "input", "actualOutput|actual_output|metricsData|metrics_data"):
        return True
    return is_object(value, "turns", "metricsData|metrics_data|scenario|expectedOutcome") and is_list(value["turns"])


def _is_sample(value: Any) -> bool:
    if is_object(value, "user_input"):
        return is_object(value, "response|retrieved_contexts|reference") or is_list(value["user_input"])
    return is_object(value, "question", "answer", "contexts")


DEEPEVAL = Format(
    "DeepEval test cases", ("input", "actualOutput|actual_output"), _is_test_case, partial(_read_cases, is_ragas=False)
)
RAGAS = Format("ragas samples", ("user_input", "response"), _is_sample, partial(_read_cases, is_ragas=True))
EVALUATIONS = (PROMPTFOO, DEEPEVAL, RAGAS)
