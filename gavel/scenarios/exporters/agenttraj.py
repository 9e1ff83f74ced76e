"""Attempts as AgentGym's trainers read them (AgentTraj): one conversation a line, with the turns that are learned.

    {"conversations": [{"from": "human", "loss": null, "value": "…"}, {"from": "gpt", "loss": true, "value": "…"}],
     "item_id": "4711", "reward": 0.8, "success": 1.0}

The format has two speakers and no tools: a system prompt becomes the opening pair with which its own conversations
begin, a call is written as `Thought: … Action: NAME {…}`, and its result is what the human says next.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.exporters.attempts import Attempt, StoredGroup, attempts, count_untold, reward_or_none
from gavel.scenarios.exporters.losses import Losses
from gavel.scenarios.exporters.turns import Turn, tool_functions, turns
from gavel.scenarios.text_calls import signature

_OK = "OK."
SUCCESS = "success"


def conversations(groups: Iterable[StoredGroup], losses: Losses) -> Iterator[Message]:
    """A conversation for each attempt."""
    for stored in groups:
        count_untold(stored, losses)
        for attempt in attempts(stored):
            yield _conversation(attempt, losses)


def _conversation(attempt: Attempt, losses: Losses) -> Message:
    main, *further = attempt.trajectory.histories()
    losses.add("further history of an attempt: left out", len(further))
    found = turns(main, losses)
    instructions = [turn.text for turn in found if turn.role == "system"]
    if functions := tool_functions(main, losses):
        losses.add("tools that the agent was shown: written as text into the opening instruction")
        instructions.append("\n".join(["Tools:", *(f"- {signature(each)}" for each in functions)]))
    said: list[Message] = []
    if instructions:
        said += [_turn("human", None, "\n\n".join(instructions), losses), _turn("gpt", False, _OK, losses)]
    for turn in found:
        if turn.role == "assistant":
            said.append(_turn("gpt", turn.sampled is not None, _spoken(turn, losses), losses))
        elif turn.role != "system":
            _add_human(said, _heard(turn, losses), losses)
    success = attempt.trajectory.metrics.get(SUCCESS)
    return {
        "conversations": said,
        "item_id": losses.text(_item(attempt)),
        "reward": reward_or_none(attempt),
        **({} if success is None else {SUCCESS: losses.number(float(success))}),
    }


def _add_human(said: list[Message], text: str, losses: Losses) -> None:
    """Joined to the turn before where that is the human's, as after several calls: speakers take turns."""
    if said and said[-1]["from"] == "human" and len(said) > 2:
        losses.add("message that follows another one of the same speaker: joined to it")
        said[-1]["value"] += f"\n\n{losses.text(text)}"
        return
    said.append(_turn("human", None, text, losses))


def _turn(speaker: str, loss: bool | None, value: str, losses: Losses) -> Message:
    return {"from": speaker, "loss": loss, "value": losses.text(value)}


def _spoken(turn: Turn, losses: Losses) -> str:
    if turn.reasoning:
        losses.add("reasoning of a turn: left out")
    words = _heard(turn, losses)
    if not turn.calls:
        return words
    losses.add("tool call: written as `Action: NAME {…}`", len(turn.calls))
    actions = [f"Action: {call.name} {call.arguments}" for call in turn.calls]
    return "\n\n".join([*([f"Thought: {words}"] if words else []), *actions])


def _heard(turn: Turn, losses: Losses) -> str:
    if not turn.is_text:
        losses.add("image, recording or other part of a message that is no text: left out")
    return turn.text


def _item(attempt: Attempt) -> str:
    """The task's id, where a rollout or an AgentTraj file named one; else the group's."""
    metadata: dict[str, Any] = attempt.trajectory.metadata
    named = metadata.get("item_id")
    if isinstance(named, str | int):
        return str(named)
    match metadata.get("task"):
        case {"id": str(name)} if name:
            return name
        case _:
            return attempt.group_id
