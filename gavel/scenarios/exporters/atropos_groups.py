"""Groups as Atropos' environments write them: tokens, masks, scores, log-probs and messages, one group on each line.

A member without a score, without its sampler's tokens, or whose turns are not one token sequence has no place there; it
is counted.
"""

from collections.abc import Iterable, Iterator

from gavel.llm.types import Message
from gavel.scenarios.atropos_group import atropos_group
from gavel.scenarios.exporters.attempts import StoredGroup
from gavel.scenarios.exporters.losses import Losses


def groups(stored: Iterable[StoredGroup], losses: Losses) -> Iterator[Message]:
    """A document for each group that has a member left."""
    for each in stored:
        converted = atropos_group(each.group)
        for reason in converted.left_out:
            losses.add(f"attempt left out: {reason}")
        losses.attempts += len(converted.left_out)
        if converted.group is None:
            losses.groups += 1
        else:
            yield losses.plain(converted.group.model_dump(mode="json"))
