"""Trajectories of AgentGym (AgentTraj and what AgentEvol explores): ShareGPT turns that say which of them are learned.

    {"conversations": [{"from": "human", "loss": null, "value": "…"}, {"from": "gpt", "loss": true, "value": "…"}],
     "item_id": "textcraft_12"}

A turn with `loss: true` becomes a sampled turn (without tokens), every other one is context: the instruction and the
"OK." that open a conversation are never learned. The attempts at one item are a group.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.readers import sharegpt
from gavel.scenarios.readers.checks import trajectory
from gavel.scenarios.readers.row import Attempt, Format, Row, RowError, Source, is_list, is_object

NAME = "AgentTraj"
_TURN = ("from", "value", "loss")
_FORM = 'Write turns as {"from": "gpt", "loss": true, "value": "…"}.'


def _fits(value: Any) -> bool:
    if not is_object(value, "conversations", "item_id") or not is_list(value["conversations"]):
        return False
    turns = value["conversations"]
    return bool(turns) and all(is_object(turn, *_TURN) for turn in turns)


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        fields = cast(Message, row.value)
        said: list[Message | Choice] = []
        for number, turn in enumerate(cast("list[Message]", fields["conversations"])):
            _check(turn, f"{row.where}: conversations.{number}")
            for message in sharegpt.messages(turn, [], f"{row.where} cannot be judged: {number}"):
                is_learned = turn["loss"] == 1 and message["role"] == "assistant"
                said.append(_sampled(message) if is_learned else message)
        rest = {key: value for key, value in fields.items() if key != "conversations"}
        found = trajectory(cast("list[Message]", said), row.where, fields=rest)
        opening = next((at for at, item in enumerate(said) if isinstance(item, Choice)), len(said))
        yield Attempt(found, row, NAME, {"item_id": fields["item_id"]}, opening)


def _check(turn: Message, where: str) -> None:
    if not isinstance(turn["value"], str):
        raise RowError(f"{where}.value is no text", _FORM)
    if not isinstance(turn["loss"], bool | int | None):  # the text "true" would be learned from nowhere
        raise RowError(f"{where}.loss is {turn['loss']!r:.40}, which is neither true, false nor null", _FORM)


def _sampled(message: Message) -> Choice:
    return Choice.model_validate({"index": 0, "finish_reason": "stop", "message": message})


AGENT_TRAJ = Format(NAME, ("conversations", "item_id"), _fits, _read, task="item_id")
