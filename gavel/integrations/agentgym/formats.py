"""AgentGym's trajectories (AgentTraj and AgentEvol's explorations): ShareGPT turns with a flag for training.

    {"conversations": [{"from": "human", "loss": null, "value": "…"}, {"from": "gpt", "loss": true, "value": "…"}],
     "item_id": "textcraft_12", "reward": 0.8, "success": 1.0}

A turn with `loss: true` becomes a sampled turn (without tokens), every other one is context: the instruction and the
"OK." that open a conversation are never learned. Attempts at one item form a group.

Writing: the format has two speakers and no tools: a system prompt becomes the opening pair of its conversations, a call
is written as `Thought: … Action: NAME {…}`, and its result is the next human turn.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.formats import chat
from gavel.scenarios.formats.exported import (
    Export,
    Losses,
    StoredAttempt,
    StoredGroup,
    Turn,
    all_attempts,
    tool_functions,
    turns,
)
from gavel.scenarios.formats.row import Attempt, Format, Row, RowError, Source, is_list, is_object, trajectory
from gavel.scenarios.text_calls import signature
from gavel.scenarios.trajectory import History

NAME, SUCCESS = "AgentTraj", "success"
_TURN = ("from", "value", "loss")
_FORM = 'Write turns as {"from": "gpt", "loss": true, "value": "…"}.'


def _fits(value: Any) -> bool:
    return (
        is_object(value, "conversations", "item_id")
        and is_list(turns := value["conversations"])
        and bool(turns)
        and all(is_object(turn, *_TURN) for turn in turns)
    )


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        fields = cast(Message, row.value)
        said: list[Message | Choice] = []
        for number, turn in enumerate(cast("list[Message]", fields["conversations"])):
            where = f"{row.where}: conversations.{number}"
            if not isinstance(turn["value"], str):
                raise RowError(f"{where}.value is no text", _FORM)
            if not isinstance(turn["loss"], bool | int | None):  # the text "true" would not be recognized
                raise RowError(f"{where}.loss is {turn['loss']!r:.40}, which is neither true, false nor null", _FORM)
            for message in chat.convert(turn, row.where, str(number))[0]:
                is_learned = turn["loss"] == 1 and message["role"] == "assistant"
                sampled = {"index": 0, "finish_reason": "stop", "message": message}
                said.append(Choice.model_validate(sampled) if is_learned else message)
        rest = {key: value for key, value in fields.items() if key != "conversations"}
        found = trajectory(cast("list[Message]", said), row.where, fields=rest)
        opening = next((at for at, item in enumerate(said) if isinstance(item, Choice)), len(said))
        yield Attempt(found, row, NAME, {"item_id": fields["item_id"]}, opening)


AGENT_TRAJ = Format(NAME, ("conversations", "item_id"), _fits, _read, task="item_id")


def conversations(groups: Iterable[StoredGroup], losses: Losses) -> Iterator[Message]:
    """One conversation per attempt."""
    for attempt in all_attempts(groups, losses):
        main, *further = attempt.trajectory.histories()
        losses.add("further history of an attempt: left out", len(further))
        success = attempt.trajectory.metrics.get(SUCCESS)
        yield {
            "conversations": _conversation(main, losses),
            "item_id": losses.text(_item(attempt)),
            "reward": attempt.reward,
            **({} if success is None else {SUCCESS: losses.number(float(success))}),
        }


def _conversation(history: History, losses: Losses) -> list[Message]:
    said: list[Message] = []

    def say(speaker: str, loss: bool | None, value: str) -> None:
        said.append({"from": speaker, "loss": loss, "value": losses.text(value)})

    found = turns(history, losses)
    is_sampled = any(turn.sampled is not None for turn in found)  # else all turns are learned from, as in `train_sft`
    instructions = [turn.text for turn in found if turn.role == "system"]
    if functions := tool_functions(history, losses):
        losses.add("tools that the agent was shown: written as text into the opening instruction")
        instructions.append("\n".join(["Tools:", *(f"- {signature(each)}" for each in functions)]))
    if instructions:
        say("human", None, "\n\n".join(instructions))
        say("gpt", False, "OK.")
    for turn in found:
        if turn.role == "assistant":
            say("gpt", turn.sampled is not None or not is_sampled, _spoken(turn, losses))
        elif turn.role != "system" and len(said) > 2 and said[-1]["from"] == "human":
            # Speakers alternate, also after several calls.
            losses.add("message that follows another one of the same speaker: joined to it")
            said[-1]["value"] += f"\n\n{losses.text(_heard(turn, losses))}"
        elif turn.role != "system":
            say("human", None, _heard(turn, losses))
    return said


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


def _item(attempt: StoredAttempt) -> str:
    """The task's id, if a rollout or an AgentTraj file names one; else the group's."""
    match attempt.trajectory.metadata:
        case {"item_id": str() | int() as name} | {"task": {"id": str() as name}} if name != "":
            return str(name)
        case _:
            return attempt.place.id


FORMATS = (AGENT_TRAJ,)
EXPORTS = {
    "agenttraj": Export("AgentTraj conversations", (".jsonl",), lambda groups, _, losses: conversations(groups, losses))
}
