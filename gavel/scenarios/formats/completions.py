"""TRL's rows: a prompt with its completion, and preference pairs; each of text or of messages.

    {"prompt": "2 + 2?", "completion": "4", "label": true}
    {"prompt": [{"role": "user", …}], "chosen": [{"role": "assistant", …}], "rejected": [{"role": "assistant", …}]}

A pair is a group of two, whose `independent_reward` is 1 for the chosen one and 0 for the rejected one. Without a
prompt, both sides are whole conversations.

Of judged groups are written preference pairs for DPO (`preference_pairs`) and conversations for SFT
(`best_conversations`): `{"messages": [{…}], "tools": "[…]", "score": 0.9}`. What was read from a rendered text
prompt is written as text: `{"prompt": "…", "completion": "…", "score": 0.9}`.
"""

import json
import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, takewhile
from typing import Any, cast

from gavel.base.text import counted
from gavel.llm.types import Message
from gavel.scenarios.formats import bodies, chat
from gavel.scenarios.formats.exported import (
    Call,
    Losses,
    StoredAttempt,
    StoredGroup,
    Turn,
    attempts,
    reward_or_none,
    tool_definitions,
    turns,
)
from gavel.scenarios.formats.row import (
    ABSENT,
    INDEPENDENT,
    Attempt,
    Format,
    Row,
    RowError,
    Source,
    as_list,
    as_message,
    at,
    first_of,
    is_list,
    is_object,
    trajectory,
)
from gavel.scenarios.formats.row import tools as openai_tools
from gavel.scenarios.formats.text import PRINTED, cell, is_conversation, is_printed, is_rendered

_SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")


def prompt_and_completion(row: Row, prompt: Any, completion: Any) -> tuple[list[Message], int]:
    """The messages of a prompt and its completion in one conversation (text becomes a user's and an assistant's
    message), and the number of the prompt's."""
    asked = side(row, prompt, "user", "prompt")
    said, _ = chat.messages([*asked, *side(row, completion, "assistant", "completion")], row.where)
    return said, len(chat.messages(asked, row.where)[0])


def side(row: Row, value: Any, role: str, name: str) -> list[Any]:
    """Text as one message, and messages (also as JSON text) unchanged. Raises `RowError` for anything else."""
    given = value
    if isinstance(value, str) and is_list(items := cell(value)) and _are_messages(items):
        given = items
    elif isinstance(value, str) and is_printed(value):
        raise RowError(f"{row.where} cannot be judged: {name}: it is text, and no JSON list.", PRINTED)
    if not isinstance(given, str | list | dict) or given == [] or (is_object(given) and not is_conversation([given])):
        problem = f"{row.where} cannot be judged: {name}: it is neither text nor messages."
        raise RowError(problem, "Write text, or a list of messages.")
    return as_message(given, role)


def _are_messages(items: list[Any]) -> bool:
    return bool(items) and all(is_object(item, "role|from") for item in items)


_SYSTEM = ("system", "system_prompt")
_COMPLETION = "completion|response|output"


def _system(fields: Message) -> list[Message]:
    """The system message from a separate field."""
    return bodies.system(first_of(fields, *_SYSTEM))


def _is_completion(value: Any) -> bool:
    """Whether it is a prompt, as text or as messages without an answer, with its completion."""
    if is_object(value, "prompt", "completion|response") or _samples_name(value) is not None:
        return True
    if not is_object(value, "messages", _COMPLETION) or not is_list(value["messages"]):
        return False
    return not any(is_object(item, "role") and item["role"] == "assistant" for item in value["messages"])


_SAMPLES = ("completions", "responses", "outputs", "generations", "samples")
_TEXTS = ("text", "completion", "response", "content", "output", "generated_text", "answer")
_REWARDS = {"rewards": "reward", "scores": "score", "labels": "label"}


def _samples_name(value: Any) -> str | None:
    """The field that holds several answers to a row's prompt."""
    if not is_object(value, "prompt|messages|instruction|question"):
        return None
    return next((name for name in _SAMPLES if is_list(value.get(name)) and value[name]), None)


def _split_samples(row: Row) -> Iterator[Row]:
    """One row for each answer of a row with several; a list of as many rewards is split among them."""
    name = _samples_name(row.value)
    if name is None or is_object(row.value, "completion|response"):
        yield row
        return
    fields = {key: value for key, value in row.value.items() if key != name}
    if "prompt" not in fields and "messages" not in fields:
        fields["prompt"] = fields.pop("instruction", None) or fields.pop("question", None)
    samples: list[Any] = row.value[name]
    for number, sample in enumerate(samples):
        own = {
            _REWARDS.get(key, key): value[number] if key in _REWARDS else value
            for key, value in fields.items()
            if key not in _REWARDS or (is_list(value) and len(value) == len(samples))
        }
        if is_object(sample) and not _are_messages([sample]):
            sample, others = _text(row, f"{name}.{number}", sample)
            own |= others
        side(row, sample, "assistant", f"{name}.{number}")  # its error names the answer
        yield Row(row.where, {**own, "completion": sample})


def _text(row: Row, name: str, answer: Any) -> tuple[Any, Message]:
    """What an answer that is an object says, and its other fields. Raises `RowError` where it is not plain which."""
    said = [key for key in _TEXTS if is_object(answer) and _is_said(answer.get(key))]
    if is_object(answer) and len(said) == 1:
        return answer[said[0]], {key: value for key, value in answer.items() if key != said[0]}
    path = said[0] if said else next((path for path, text in _leaves(answer) if isinstance(text, str)), "FIELD")
    raise RowError(
        f"{row.where} cannot be judged: {name}: it is not plain which of its fields is the answer "
        f"({', '.join(map(str, answer)) if is_object(answer) else counted(len(answer), 'item')}).",
        f"Name the one: --answer-column {shlex.quote(f'{name}.{path}')}; or write the whole as JSON text, where all of "
        "it is the answer.",
    )


def _leaves(value: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    """The paths of all that stands in a list or an object and is neither, with its value."""
    for name, each in value.items() if is_object(value) else enumerate(value):
        if isinstance(each, dict | list):
            yield from _leaves(each, f"{within}{name}.")
        else:
            yield f"{within}{name}", each


def _is_said(value: Any) -> bool:
    return isinstance(value, str) or (is_list(value) and _are_messages(value))


def _may_be_answer(value: Any) -> bool:
    """Whether it is text, a message, an object with a text of a known name, nothing, or a list of these."""
    if is_list(value):
        return bool(value) and all(map(_may_be_answer, value))
    fields = is_object(value) and (_are_messages([value]) or any(_is_said(value.get(name)) for name in _TEXTS))
    return value is None or isinstance(value, str) or fields


def _read_completions(rows: Iterable[Row], source: Source) -> Iterator[Attempt]:
    for row in chain.from_iterable(map(_split_samples, rows)):
        fields = cast(Message, row.value)
        asked = "prompt" if "prompt" in fields else "messages"
        name = next(each for each in _COMPLETION.split("|") if each in fields)
        before = [*_system(fields), *side(row, fields[asked], "user", asked)]
        said, prompt = prompt_and_completion(row, before, fields[name])
        used = (asked, name, "tools", *_SYSTEM)
        rest = {key: value for key, value in fields.items() if key not in used}
        tools = openai_tools(fields.get("tools"))
        yield Attempt(trajectory(said, row.where, tools=tools, fields=rest), row, COMPLETIONS.name, prompt=prompt)


def _read_pairs(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        fields = _named(row.value)
        before = _before(row, fields)
        used = (*_PROMPTS, *(_SYSTEM if before else ()), "chosen", "rejected", "tools")
        rest = {key: value for key, value in fields.items() if key not in used}
        tools = openai_tools(fields.get("tools"))
        for name, reward in (("chosen", 1.0), ("rejected", 0.0)):
            said, _ = chat.messages([*before, *_answer(row, fields[name], name, alone=not before)], row.where)
            own = {**rest, "preference": name}
            metrics = {INDEPENDENT: reward}
            found = trajectory(said, row.where, tools=tools, fields=own, metrics=metrics)
            yield Attempt(found, row, PAIRS.name, task={"pair": row.where})


def _named(fields: Message) -> Message:
    """The fields, with OpenAI's preference data renamed to TRL's names."""
    if not is_object(fields, "preferred_output", "non_preferred_output"):
        return fields
    asked = fields.get("input")
    own = ("input", "preferred_output", "non_preferred_output")
    return {
        **{name: value for name, value in fields.items() if name not in own},
        **({name: asked[name] for name in ("messages", "tools") if name in asked} if is_object(asked) else {}),
        "chosen": fields["preferred_output"],
        "rejected": fields["non_preferred_output"],
    }


_PROMPTS = ("prompt", "conversations", "messages")


def _before(row: Row, fields: Message) -> list[Any]:
    """The messages before the answers; empty if each answer is a whole conversation."""
    name = next((name for name in _PROMPTS if name in fields), None)
    if name is None:
        return []
    prompt = [*_system(fields), *side(row, fields[name], "user", name)]
    answers = [side(row, fields[each], "assistant", each) for each in ("chosen", "rejected")]
    return [] if all(len(a) > len(prompt) and a[: len(prompt)] == prompt for a in answers) else prompt


def _answer(row: Row, value: Any, name: str, *, alone: bool) -> list[Any]:
    parts = _SPEAKER.split(value) if alone and isinstance(value, str) else []
    if len(parts) < 3 or parts[0].strip():
        return side(row, value, "assistant", name)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return [{"role": "user" if who == "Human" else "assistant", "content": said} for who, said in pairs]


@dataclass(frozen=True, slots=True)
class Columns:
    """The fields (dotted paths) with the prompt and the answers of a row, for names that no format knows."""

    prompt: str | None = None
    """None = `prompt` or `messages`."""
    answers: Sequence[str] = ()
    """Fields that each hold an attempt. Empty = `completion`, `response` or `output`."""

    @property
    def names(self) -> list[str]:
        return [*filter(None, [self.prompt]), *self.answers]

    def rename(self, row: Row, known: Collection[str], source: Source) -> Iterator[Row]:
        """One row with `prompt` and `completion` for each answer; empty cells are counted.

        `known`: the fields of all rows. Raises `RowError` for a field that no row has.
        """
        names = (self.prompt,) if self.prompt else ("prompt", "messages")
        asked, prompt = _column(row, names, known, "--prompt-column")
        answers = [(name,) for name in self.answers] or [tuple(_COMPLETION.split("|"))]
        columns = [_column(row, names, known, "--answer-column") for names in answers]
        used = {asked, *(name for name, _ in columns), "prompt", "completion"}
        found = [answer for name, value in columns for answer in _split_answers(row, name, value)]
        rest = {name: value for name, value in row.value.items() if name not in used}
        for name, answer, others in found:
            if answer is None or prompt is None:
                source.left_out[f"row without {name if answer is None else asked}"] += 1
                continue
            own = {**rest, **others, "prompt": _as_said(prompt), "completion": _as_said(answer)}
            yield Row(row.where, own | ({"answer_column": name} if len(found) > 1 else {}))


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
    if not isinstance(value, dict | list) or not value or _are_messages(as_list(value) or [value]):
        return [(name, value, {})]
    if is_list(value) and all(is_list(each) and all(isinstance(text, str) for text in each) for each in value):
        raise RowError(
            f"{row.where} cannot be judged: {name} holds lists of texts within a list.",
            f"Name the list whose texts are the answers: --answer-column {name}.0.",
        )
    if is_list(value) and _may_be_answer(value):
        return [answer for n, each in enumerate(value) for answer in _split_answers(row, f"{name}.{n}", each)]
    leaves = [each for _, each in _leaves(value) if each is not None]
    if _may_be_answer(value) or 0 < sum(isinstance(each, str) for each in leaves) < len(leaves):
        return [(name, *_text(row, name, value))]
    return [(name, value, {})]


def _as_said(value: Any) -> Any:
    """Messages as they are, anything else as its text."""
    if _is_said(value):
        return value
    return [value] if _are_messages([value]) else json.dumps(value, ensure_ascii=False)


def read_columns(rows: Sequence[Row], columns: Columns, source: Source) -> Iterator[Attempt]:
    """The attempts of a table whose columns a user named."""
    objects = [row.value for row in rows if is_object(row.value)]
    known = dict.fromkeys(name for value in objects for name in value)
    for name in columns.names:  # paths may lead into objects
        above = name.rpartition(".")[0]
        inner = [at(value, above) for value in objects] if above else []
        known |= dict.fromkeys(f"{above}.{each}" for value in inner if is_object(value) for each in value)
        known |= dict.fromkeys(name for value in objects if at(value, name) is not ABSENT)
    for row in rows:
        if not is_object(row.value):
            raise RowError(f"{row.where} is no object, so it has no columns.", "Leave the options of columns out.")
        for attempt in _read_completions(columns.rename(row, known, source), source):
            yield replace(attempt, row=row, form=TABLE)


TABLE = "prompt and answer columns"


COMPLETIONS = Format(
    "TRL prompt/completion",
    ("prompt", "completion|response"),
    _is_completion,
    _read_completions,
)
PAIRS = Format(
    "preference pairs",
    ("chosen|preferred_output", "rejected|non_preferred_output"),
    lambda value: is_object(value, "chosen|preferred_output", "rejected|non_preferred_output"),
    _read_pairs,
    task="pair",
)


Z = 2.0
"""Number of standard errors by which two scores must differ to be a preference."""


def preference_pairs(stored: Iterable[StoredGroup], losses: Losses, margin: float) -> Iterator[Message]:
    """TRL's DPO rows: of each group the two members whose scores differ most, and significantly.

    Significantly means by at least `margin`, and by more than twice the standard error of the difference. The prompt is
    the messages that both members begin with. Groups without such a pair, and members without a score, are counted.
    """
    for each in stored:
        scored = _scored(each, losses)
        said = [(attempt, found) for attempt in scored if (found := _conversation(attempt, losses))]
        clear = [pair for pair in combinations(said, 2) if _is_clear(pair[0][0], pair[1][0], margin)]
        clear.sort(key=lambda pair: _reward(pair[1][0]) - _reward(pair[0][0]))
        row = next((row for better, worse in clear if (row := _make_pair(*better, *worse, losses)) is not None), None)
        losses.attempts += len(scored) - (2 if row else 0)
        if row:
            yield row
            continue
        losses.groups += 1
        why = "whose members answer no common prompt, or alike"
        if not clear:
            why = f"of which no two scores differ by {margin:g} and twice their standard error"
        losses.add(f"group {why}: left out")


def best_conversations(stored: Iterable[StoredGroup], losses: Losses, above: float | None) -> Iterator[Message]:
    """TRL's SFT rows: the best member of each group, the first of equals.

    Scores are relative, so a group with equal scores has no best member, unless its score is above `above`.
    """
    for each in stored:
        scored = [attempt for attempt in _scored(each, losses) if attempt.trajectory.status != "truncated"]
        said: list[Message] = []
        if scored and above is not None and _reward(scored[0]) <= above:
            losses.add(f"group without a score above {above:g}: left out")
        elif scored and above is None and _reward(scored[0]) == _reward(scored[-1]):
            losses.add("group whose members score alike: left out (--above takes those that score more)")
        elif scored:
            said = _conversation(scored[0], losses)
        losses.attempts += len(scored) - bool(said)
        if said and _is_text(said):
            yield {"prompt": said[0]["content"], "completion": said[1]["content"], "score": _reward(scored[0])}
        elif said:
            yield {"messages": said, **_tools(scored[0], losses), "score": _reward(scored[0])}
        else:
            losses.groups += 1


def _scored(stored: StoredGroup, losses: Losses) -> list[StoredAttempt]:
    """The members with a score, the best first."""
    members = list(attempts(stored))
    scored = [each for each in members if reward_or_none(each) is not None and each.trajectory.status != "failed"]
    losses.add("member without a score: left out", len(members) - len(scored))
    losses.attempts += len(members) - len(scored)
    return sorted(scored, key=_reward, reverse=True)


def _reward(attempt: StoredAttempt) -> float:
    return attempt.reward or 0.0


def _is_clear(better: StoredAttempt, worse: StoredAttempt, margin: float) -> bool:
    judged = [each.trajectory.judgement for each in (better, worse)]
    error = math.hypot(*((each and each.standard_error) or 0.0 for each in judged))
    difference = _reward(better) - _reward(worse)
    return difference > Z * error and difference >= margin - 1e-9


def _make_pair(
    better: StoredAttempt, chosen: list[Message], worse: StoredAttempt, rejected: list[Message], losses: Losses
) -> Message | None:
    """The row; None if the members begin with different messages, or are equal."""
    shared = list(takewhile(lambda pair: _said(pair[0]) == _said(pair[1]), zip(chosen, rejected, strict=False)))
    ends = range(min(len(shared), len(chosen) - 1, len(rejected) - 1), 0, -1)
    end = next((n for n in ends if chosen[n]["role"] == rejected[n]["role"] == "assistant"), 0)
    if end == 0 or chosen[end - 1]["role"] not in ("user", "tool") or len(shared) == len(chosen) == len(rejected):
        return None
    if any(message["role"] == "tool" for message in (*chosen[end:], *rejected[end:])):
        losses.add("pair with results of tools inside its answers: kept; DPO in TRL does not mask them")
    scores = {"score_chosen": _reward(better), "score_rejected": _reward(worse)}
    if _is_text(chosen) and _is_text(rejected):
        sides = {"chosen": chosen[1]["content"], "rejected": rejected[1]["content"]}
        return {"prompt": chosen[0]["content"], **sides, **scores}
    sides = {"prompt": chosen[:end], "chosen": chosen[end:], "rejected": rejected[end:]}
    return {**sides, **_tools(better, losses), **scores}


def _is_text(messages: Sequence[Message]) -> bool:
    """Whether it is a prompt rendered by a chat template, and its completion: as messages, TRL would render it
    again."""
    roles = [message["role"] for message in messages]
    return roles == ["user", "assistant"] and is_rendered(messages[0]["content"]) and messages[1].keys() <= _PLAIN


_PLAIN = {"role", "content"}


def _said(message: Message) -> Message:
    """The message without the ids of its calls, which differ between otherwise equal attempts."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls, "tool_call_id": None}


def _conversation(attempt: StoredAttempt, losses: Losses) -> list[Message]:
    """The messages up to the last assistant turn; none if they hold more than text, or no such turn."""
    main, *further = attempt.trajectory.histories()
    losses.add("further history of an attempt: left out", len(further))
    found = turns(main, losses)
    while found and found[-1].role != "assistant":
        del found[-1]
    if not found or not all(turn.is_text for turn in found):
        losses.add("attempt with images or recordings, or without an answer: left out")
        return []
    return [_message(turn, losses) for turn in found]


def _message(turn: Turn, losses: Losses) -> Message:
    message: Message = {"role": turn.role, "content": losses.text(turn.text)}
    if turn.calls:
        message["tool_calls"] = [_call(call, losses) for call in turn.calls]
    given = {"reasoning_content": turn.reasoning or None, "tool_call_id": turn.call_id, "name": turn.name or None}
    return message | {name: losses.text(text) for name, text in given.items() if text is not None}


def _call(call: Call, losses: Losses) -> Message:
    """The call with its arguments as an object: chat templates write text as a JSON string."""
    if call.values is None:
        losses.add("tool call whose arguments are no JSON object: kept as text")
    arguments = losses.text(call.arguments) if call.values is None else call.values
    function = {"name": losses.text(call.name), "arguments": arguments}
    return {**({"id": losses.text(call.id)} if call.id else {}), "type": "function", "function": function}


def _tools(attempt: StoredAttempt, losses: Losses) -> Message:
    """The tools as JSON text, which TRL reads: a table would give each tool the fields of the others."""
    found = tool_definitions(attempt.trajectory.histories()[0], losses)
    return {"tools": json.dumps(found, ensure_ascii=False)} if found else {}
