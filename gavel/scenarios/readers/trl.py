"""TRL's rows: a prompt with its completion, and preference pairs; each of text or of messages.

    {"prompt": "2 + 2?", "completion": "4", "label": true}
    {"prompt": [{"role": "user", …}], "chosen": [{"role": "assistant", …}], "rejected": [{"role": "assistant", …}]}

A pair is a group of two, whose `independent_reward` is 1 for the chosen one and 0 for the rejected one. Without a
prompt, both sides are whole conversations.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

from gavel.llm.types import Message
from gavel.scenarios.readers import anthropic, chat
from gavel.scenarios.readers.checks import INDEPENDENT, as_message, trajectory
from gavel.scenarios.readers.row import Attempt, Format, Row, RowError, Source, is_list, is_object
from gavel.scenarios.readers.text import PRINTED, cell, is_printed
from gavel.scenarios.readers.tool_calls import tools as openai_tools

_SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")


def prompt_and_completion(row: Row, prompt: Any, completion: Any) -> tuple[list[Message], int]:
    """Their messages in one conversation (text becomes a user's and an assistant's), and how many are the prompt."""
    asked = side(row, prompt, "user", "prompt")
    said, _ = chat.messages([*asked, *side(row, completion, "assistant", "completion")], row.where)
    return said, len(chat.messages(asked, row.where)[0])


def side(row: Row, value: Any, role: str, name: str) -> list[Any]:
    """Text as one message, and messages (also as JSON text) as they are. Raises `RowError` for anything else."""
    given = cell(value) if isinstance(value, str) else value
    if isinstance(value, str) and not (is_list(given) and _are_messages(given)):
        if is_printed(value):
            raise RowError(f"{row.where} cannot be judged: {name}: it is text, and no JSON list.", PRINTED)
        given = value
    if not isinstance(given, str | list | dict) or given == []:
        problem = f"{row.where} cannot be judged: {name}: it is neither text nor messages."
        raise RowError(problem, "Write text, or a list of messages.")
    return as_message(given, role)


def _are_messages(items: list[Any]) -> bool:
    return bool(items) and all(is_object(item, "role|from") for item in items)


_SYSTEM = ("system", "system_prompt")
_COMPLETION = "completion|response|output"


def _system(fields: Message) -> list[Message]:
    """The system message that stands in a field of its own."""
    given = next((fields[name] for name in _SYSTEM if fields.get(name)), None)
    return [{"role": "system", "content": given}] if isinstance(given, str) else anthropic.system(given)


def _is_completion(value: Any) -> bool:
    """Whether it is a prompt, as text or as messages without an answer, beside its completion."""
    if is_object(value, "prompt", "completion|response") or _samples_name(value) is not None:
        return True
    if not is_object(value, "messages", _COMPLETION) or not is_list(value["messages"]):
        return False
    return not any(is_object(item, "role") and item["role"] == "assistant" for item in value["messages"])


_SAMPLES = ("completions", "responses", "outputs", "generations", "samples")
_TEXTS = ("text", "completion", "response", "content", "output", "generated_text")
_REWARDS = {"rewards": "reward", "scores": "score", "labels": "label"}


def _samples_name(value: Any) -> str | None:
    """The field that holds several answers to the prompt of a row."""
    if not is_object(value, "prompt|messages|instruction|question"):
        return None
    return next((name for name in _SAMPLES if is_list(value.get(name)) and value[name]), None)


def _each_sample(row: Row) -> Iterator[Row]:
    """A row for each answer of a row with several; its rewards, where there is one for each, are that answer's."""
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
        if is_object(sample) and "role" not in sample:
            text = next((key for key in _TEXTS if isinstance(sample.get(key), str)), None)
            if text is None:
                problem = f"{row.where} cannot be judged: {name}.{number}: it holds no text."
                raise RowError(problem, f"An answer is text, messages, or an object with {', '.join(_TEXTS)}.")
            own |= {key: value for key, value in sample.items() if key != text}
            sample = sample[text]
        yield Row(row.where, {**own, "completion": sample})


def _read_completions(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in chain.from_iterable(map(_each_sample, rows)):
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
    """The fields, those of OpenAI's preference data under TRL's names."""
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
    """The messages before the answers; none where each answer is a whole conversation."""
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
    """Which fields of a row (dotted paths) hold what was asked and what was answered, where their names do not tell."""

    prompt: str | None = None
    """None = `prompt` or `messages`."""
    answers: Sequence[str] = ()
    """Each holds an attempt. None of them = `completion`, `response` or `output`."""

    @property
    def names(self) -> list[str]:
        return [*([self.prompt] if self.prompt else ()), *self.answers]

    def rename(self, row: Row, source: Source) -> Iterator[Row]:
        """A row with `prompt` and `completion` for each answer; absent answers are counted.

        Raises `RowError` for a row without one of the fields.
        """
        asked, prompt = _column(row, (self.prompt,) if self.prompt else ("prompt", "messages"), "--prompt-column")
        answers = [(name,) for name in self.answers] or [tuple(_COMPLETION.split("|"))]
        found = [_column(row, names, "--answer-column") for names in answers]
        used = {asked, *(name for name, _ in found), "prompt", "completion"}
        rest = {name: value for name, value in row.value.items() if name not in used}
        for name, answer in found:
            if answer is None:
                source.left_out[f"row without {name}"] += 1
                continue
            own = {**rest, "prompt": _as_said(prompt), "completion": _as_said(answer)}
            yield Row(row.where, own | ({"answer_column": name} if len(found) > 1 else {}))


def _column(row: Row, names: Sequence[str], option: str) -> tuple[str, Any]:
    """The first of the fields that the row has, and its value."""
    for name in names:
        value: Any = row.value
        for part in [name] if is_object(value, name) else name.split("."):
            value = value[part] if is_object(value, part) else _ABSENT
        if value is not _ABSENT:
            return name, value
    known = ", ".join(row.value) if is_object(row.value) else "none: it is no object"
    raise RowError(
        f"{row.where} has no column {' or '.join(names)}. Its columns: {known}.", f"Name one of them: {option} COLUMN."
    )


_ABSENT = object()


def _as_said(value: Any) -> Any:
    """Messages as they are, anything else as its text."""
    if isinstance(value, str) or (is_list(value) and _are_messages(value)):
        return value
    return [value] if is_object(value, "role") else json.dumps(value, ensure_ascii=False)


def read_columns(rows: Sequence[Row], columns: Columns, source: Source) -> Iterator[Attempt]:
    """The attempts of a table whose columns a user named."""
    for row in rows:
        for attempt in _read_completions(list(columns.rename(row, source)), source):
            yield replace(attempt, row=row, form="prompt and answer columns")


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
