"""A scenario with long episodes, for `turn_table.py`: a queue of returns, each looked up, decided and acted on.

The tools are those of the returns desk; the result of each act names the next request, and after the last one the agent
says that it is done. So an episode of five requests has 6 turns if nothing is looked up, and 16 if everything is.

`reply` is the judge: by the reference it knows the right acts, and scores each request as the rubric of the desk weighs
them, 2 for having looked, 4 for the right act. A state is the score of what is decided, of the request at hand the
group's mean over those who looked as far, and of what is to come the group's mean.
"""

import json
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pydantic import BaseModel

from gavel.judge.prompt.fenced_transcript import marks_turns, read_reference, read_transcripts
from gavel.judge.prompt.provider_formats import ToolCallEvent, turn_starts
from gavel.llm.types import Message
from gavel.scenarios.library import returns_desk as desk
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.trajectory import Trajectory

REQUESTS = 5
LOOKS = ("look_up_order", "read_policy")


class Waiting(BaseModel):
    """The data of a task: numbers of the orders, in their order."""

    orders: list[int]


class Queue:
    """Several requests, one after the other, in one conversation."""

    async def reset(self, task: Task) -> None:
        self._waiting = [desk.draw_task(number) for number in Waiting.model_validate(task.data).orders]
        self._acts: list[bool] = []

    async def look_up_order(self, order_id: str) -> dict[str, object]:
        """Look up an order."""
        return await desk.look_up_order(order_id, self._now)

    async def read_policy(self, item: str) -> dict[str, object]:
        """Read the policy of an item."""
        return await desk.read_policy(item, self._now)

    async def refund(self, order_id: str) -> str:
        """Pay the money back."""
        return self._acted("refund", await desk.refund(order_id, self._now))

    async def exchange(self, order_id: str) -> str:
        """Exchange the item."""
        return self._acted("exchange", await desk.exchange(order_id, self._now))

    async def deny(self, order_id: str) -> str:
        """Deny the request."""
        return self._acted("deny", await desk.deny(order_id, self._now))

    @property
    def _now(self) -> Task:
        if len(self._acts) == len(self._waiting):
            raise LookupError("nobody waits")
        return self._waiting[len(self._acts)]

    def _acted(self, act: str, told: str) -> str:
        self._acts.append(desk.Case.model_validate(self._now.data).right_action == act)
        return f"{told}. {self._now.user}" if len(self._acts) < len(self._waiting) else told

    def success(self, trajectory: Trajectory) -> float:
        """Whether all acts are right. `reward` is the share of them."""
        return float(sum(self._acts) == len(self._waiting))

    def reward(self, trajectory: Trajectory) -> float:
        return sum(self._acts) / len(self._waiting)


NUMBERS = {held_out: desk.split_numbers(held_out) for held_out in (False, True)}


def draw_queue(number: int, held_out: bool) -> Task:
    orders = random.Random(f"queue {number}").sample(NUMBERS[held_out], REQUESTS)
    right = {order: desk.draw_case(order).right_action for order in orders}
    user = desk.draw_task(orders[0]).user
    return Task(id=f"queue-{number}", user=user, data=Waiting(orders=orders).model_dump(), reference=json.dumps(right))


scenario = Scenario(
    name="return_queue",
    system=desk.scenario.system,
    environment=Queue,
    tasks=DrawnTasks(range(2000), lambda number: draw_queue(number, held_out=False)),
    held_out=DrawnTasks(range(2000, 2500), lambda number: draw_queue(number, held_out=True)),
    max_turns=6 * REQUESTS,
    max_steps=6 * REQUESTS,
    rubric="Each request is looked up and read about (weight 2) before the right act (weight 4).",
)


def reply(messages: Sequence[Message]) -> str:
    """The judge's reply."""
    text = messages[-1]["content"]
    right: dict[str, str] = json.loads(read_reference(text))
    paths = {label: _path(main.events, right) for label, (main, *_) in read_transcripts(text).items()}
    acts = {label: path[-1][0] for label, path in paths.items()}
    scores = {label: [_score(*act) for act in own] + [0.0] * (len(right) - len(own)) for label, own in acts.items()}
    told: list[dict[str, Any]] = []
    for label, path in paths.items():
        states: list[float] = []
        for done, seen in path:
            at = len(done)
            found = scores[label][:at]
            for later in range(at, len(right)):
                alike = [own[later] for other, own in scores.items() if later > at or _went(acts[other], at) >= seen]
                found.append(fmean(alike or [scores[label][later]]))
            states.append(fmean(found))
        score = fmean(scores[label])
        states[-1] = score
        percents = [round(100 * state) for state in states]
        shown = {"states": percents} if marks_turns(text) else {}
        told.append({"trajectory_id": label, "explanation": "", **shown, "score": round(score, 3)})
    return json.dumps({"scores": told})


Act = tuple[frozenset[str], bool]
"""What was looked at before it, and whether it was right."""


def _path(events: Sequence[Any], right: Mapping[str, str]) -> list[tuple[list[Act], frozenset[str]]]:
    """After each turn, the acts so far, and what has been looked at since."""
    acts: list[Act] = []
    seen: frozenset[str] = frozenset()
    found: list[tuple[list[Act], frozenset[str]]] = []
    starts = turn_starts(events)
    for start, end in zip(starts, [*starts[1:], len(events)], strict=True):
        for event in events[start:end]:
            if not isinstance(event, ToolCallEvent) or event.result is None or '"error"' in str(event.result):
                continue
            if event.name in LOOKS:
                seen |= {event.name}
            elif event.name in desk.ACTIONS and len(acts) < len(right):
                acts.append((seen, list(right.values())[len(acts)] == event.name))
                seen = frozenset()
        found.append(([*acts], seen))
    return found or [([], seen)]


def _went(acts: Sequence[Act], at: int) -> frozenset[str]:
    return acts[at][0] if at < len(acts) else frozenset()


def _score(seen: frozenset[str], is_right: bool) -> float:
    return (2 * (len(seen) == len(LOOKS)) + 4 * is_right) / 6
