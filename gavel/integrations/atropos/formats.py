"""Group files of Atropos' environments (`data_path_to_save_groups`, the `process` command), one group per line.

    {"tokens": [[…]], "masks": [[…]], "scores": [1.0], "messages": [[{"role": "user", …}]], "inference_logprobs": […]}

A trained range of tokens becomes the `Choice` of its message, with token ids and log-probs, so a group that is read can
be judged, trained on and forwarded. Groups without messages cannot be read: tokens have no text without their
tokenizer.

Writing: a member without a score or its sampler's tokens, or whose turns are not one token sequence, is dropped and
counted.
"""

from collections.abc import Iterable, Iterator, Sequence

from pydantic import ValidationError

from gavel.base.text import counted
from gavel.integrations.atropos.group import MASKS, AtroposGroup, atropos_group, first_problem
from gavel.llm.types import Message
from gavel.scenarios.formats.exported import Export, Losses, StoredGroup
from gavel.scenarios.formats.row import Format, Row, RowError, Source, WholeGroup, is_list, is_object

_WITH_MESSAGES = "Let the environment write them: include_messages=True in its configuration."


def _read(rows: Sequence[Row], source: Source) -> Iterator[WholeGroup]:
    whole_texts = 0
    for row in rows:
        try:
            stored = AtroposGroup.model_validate(row.value)
        except ValidationError as error:
            raise RowError(f"{row.where} is no group of Atropos: {first_problem(error)}") from error
        if told := stored.other_targets():
            raise RowError(f"{row.where}: {told}.", MASKS)
        if stored.messages is None:
            raise RowError(f"{row.where} cannot be judged: it has token ids and no messages.", _WITH_MESSAGES)
        group = stored.trajectories(None, {} if stored.env_id is None else {"env_id": stored.env_id})
        whole_texts += sum(not any(True for _ in each.choices()) for each in group)
        yield WholeGroup(group, row, ATROPOS.name)
    if whole_texts:
        source.notes.append(
            f"{counted(whole_texts, 'member')} without a message for each trained turn: read as text, without tokens."
        )


ATROPOS = Format(
    "Atropos groups",
    ("tokens", "masks", "scores"),
    lambda value: is_object(value, "tokens", "masks", "scores") and is_list(value["tokens"]),
    _read,
)


def groups(stored: Iterable[StoredGroup], losses: Losses) -> Iterator[Message]:
    """One document for each group that has a member left."""
    for each in stored:
        made, left_out = atropos_group(each.group)
        for reason in left_out:
            losses.add(f"attempt left out: {reason}")
        losses.attempts += len(left_out)
        if made is None:
            losses.groups += 1
        else:
            yield losses.plain(made.model_dump(mode="json"))


FORMATS = (ATROPOS,)
EXPORTS = {"atropos": Export("Atropos groups", (".jsonl",), lambda stored, _, losses: groups(stored, losses))}
