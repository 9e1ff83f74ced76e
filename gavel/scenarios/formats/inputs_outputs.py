"""Rows with an input and an output, as evaluation tools, instruction data sets and trainers' dumps have them.

{"instruction": "Sum up.", "input": "The text", "output": "A summary"}
{"input": "<|user|>2 + 2?<|assistant|>", "output": "4", "score": 1.0}
{"inputs": {"question": "2 + 2?"}, "outputs": {"answer": "4"}}
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import payloads
from gavel.scenarios.formats.checks import trajectory
from gavel.scenarios.formats.row import Attempt, Format, Row, Source, is_object

_NAMES = (("input", "output"), ("inputs", "outputs"))


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        fields: Message = row.value
        given, answered = next((pair for pair in _NAMES if pair[1] in fields), _NAMES[0])
        asked = fields.get(given)
        if "instruction" in fields:
            asked = "\n\n".join(str(part) for part in (fields["instruction"], asked) if part)
        said = payloads.conversation(asked, fields[answered], row.where)
        before = payloads.conversation(asked, None, row.where)
        if not said:
            source.left_out["row without input and output"] += 1
            continue
        used = (given, answered, "instruction", "tools")
        rest = {name: value for name, value in fields.items() if name not in used}
        found = trajectory(said, row.where, tools=payloads.tools(asked), fields=rest)
        yield Attempt(found, row, LOGGED.name, prompt=len(before) if said[: len(before)] == before else None)


def _fits(value: Any) -> bool:
    return is_object(value, "output", "input|instruction") or is_object(value, "inputs", "outputs")


LOGGED = Format("inputs and outputs", ("input|inputs|instruction", "output|outputs"), _fits, _read)
