"""Sampled turns, each with the turn that it continues -> a trajectory.

    A, B continues A, C continues A, D continues B; X   ->   A B D, with A C and X as additional histories

Each path from a first turn to a last one is a history. A sampled turn is a `Choice` in one history alone; in others it
is a message, which is not trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gavel.llm.types import Message
from gavel.scenarios.trajectory import History, Trajectory


@dataclass(frozen=True, slots=True)
class CapturedTurn:
    """One sampled turn."""

    parent: int | None
    """Number of the turn that it continues."""
    context: list[Message]
    """Its messages after that turn's reply."""
    tools: list[Message] | None
    choice: Message


def captured_trajectory(turns: Sequence[CapturedTurn]) -> Trajectory:
    """The trajectory of all turns, which are in the order in which they were sampled.

    The main history is the one that lasts longest, from its first turn to its last: that of an agent that waits for its
    sub-agents, and of several attempts at a turn the last one. Where a client rewrites the conversation at every turn,
    it is the one with the most messages.
    """
    paths = sorted(_paths(turns), key=lambda path: _extent(turns, path), reverse=True)
    histories = _histories(turns, paths)
    if not histories:
        return Trajectory(
            metrics={"turns": 0}, status="failed", status_reason="no turn was sampled with the key of the capture"
        )
    main, *others = histories
    versions = [turn.choice["policy_version"] for turn in turns if turn.choice.get("policy_version") is not None]
    cut = turns[paths[0][-1]].choice["finish_reason"] == "length"
    return Trajectory(
        messages_and_choices=main.messages_and_choices,
        tools=main.tools,
        additional_histories=others,
        metrics={"turns": len(turns)},
        status="truncated" if cut else "finished",
        status_reason="a turn reached its token limit" if cut else None,
        policy_version=min(versions, default=None),
    )


def _extent(turns: Sequence[CapturedTurn], path: Sequence[int]) -> tuple[int, int, int]:
    return path[-1] - path[0], len(path), sum(len(turns[number].context) for number in path)


def _paths(turns: Sequence[CapturedTurn]) -> list[list[int]]:
    """The numbers of the turns from each first turn to each last one."""
    continued = {turn.parent for turn in turns}
    paths: list[list[int]] = []
    for leaf in range(len(turns)):
        if leaf not in continued:
            path = [leaf]
            while (parent := turns[path[0]].parent) is not None:
                path.insert(0, parent)
            paths.append(path)
    return paths


def _histories(turns: Sequence[CapturedTurn], paths: Sequence[Sequence[int]]) -> list[History]:
    histories: list[History] = []
    shown: set[int] = set()
    for path in paths:
        items: list[Message] = []
        for number in path:
            items += turns[number].context
            items.append(turns[number].choice["message"] if number in shown else turns[number].choice)
        shown.update(path)
        tools = [turns[number].tools for number in path if turns[number].tools]
        histories.append(History.model_validate({"messages_and_choices": items, "tools": tools[-1] if tools else None}))
    return histories
