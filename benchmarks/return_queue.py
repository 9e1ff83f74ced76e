"""A long episode for the embedded policy: a queue of returns, each of which is looked up, decided and acted on.

    python benchmarks/return_queue.py --out DIR      clones the policy of the returns desk on queues, 5 CPU minutes

The tools are those of the returns desk; the result of each act names the next request, and after the last one the agent
says that it is done. So an episode of five requests has 6 turns if nothing is looked up, and 16 if everything is.

`reply` is the judge: by the reference it knows the right acts, and scores each request as the rubric of the desk weighs
them, 2 for having looked, 4 for the right act. A state is the score of what is decided, of the request at hand the
group's mean over those who looked as far, and of what is to come the group's mean.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gavel.judge.prompt.fenced_transcript import marks_turns, read_reference, read_transcripts
from gavel.judge.prompt.provider_formats import ToolCallEvent, turn_starts
from gavel.llm.types import Message
from gavel.scenarios.environment import World
from gavel.scenarios.episode import Episode
from gavel.scenarios.library import returns_desk as desk
from gavel.scenarios.rollout import episode_tools
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import Call
from gavel.scenarios.task import DrawnTasks, Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.embedded import EMBEDDED_POLICY, embedded_path

REQUESTS = 5
LOOKS = ("look_up_order", "read_policy")
STAGES = ((220, (0.70, 0.10, 0.10, 0.10)), (60, (0.18, 0.62, 0.10, 0.10)))
"""Steps, and the shares of `desk.CLERKS`, one of whom is drawn for each request."""
BATCH, RATE = 16, 2e-3


class Queue:
    """Several requests, one after the other, in one conversation."""

    async def reset(self, task: Task) -> None:
        self._waiting = [desk.draw_task(number) for number in task.data["orders"]]
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
    return Task(id=f"queue-{number}", user=user, data={"orders": orders}, reference=json.dumps(right))


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


async def demonstration(task: Task, shares: Sequence[float], dice: random.Random, renderer: Any, tokenizer: Any) -> Any:
    """An episode of clerks as tokens."""
    from clone_policy import END_OF_TURN, Demonstration, token_id

    episode = Episode(task)
    world = World(scenario.environment, episode, scenario.call_seconds)  # pyright: ignore[reportArgumentType]
    await world.reset()
    turns: list[Call | str] = []
    for order in task.data["orders"]:
        clerk = dice.choices(list(desk.CLERKS.values()), weights=shares)[0]
        turns += desk.demonstrate(desk.draw_task(order), clerk, dice)[:-1]
    turns.append("I have refunded your order.")
    async with episode_tools(scenario.toolbox, (), world, episode, scenario.call_seconds) as tools:
        opening = [{"role": "system", "content": scenario.system}, {"role": "user", "content": task.user}]
        ids = renderer.render_ids(opening, tools=tools.schemas, add_generation_prompt=True)
        cloned = [False] * len(ids)
        for turn in turns:
            text = turn.text if isinstance(turn, Call) else turn
            said = [*tokenizer.encode(text, add_special_tokens=False), token_id(tokenizer, END_OF_TURN)]
            prompt, ids = ids, ids + said
            cloned += [True] * len(said)
            if isinstance(turn, Call):
                result = await tools.call(turn.name, json.dumps(dict(turn.arguments)))
                answer = [{"role": "tool", "tool_call_id": turn.name, "content": result.content}]
                ids = list(renderer.bridge_to_next_turn(prompt, said, answer, tools=tools.schemas).token_ids)
                cloned += [False] * (len(ids) - len(cloned))
    return Demonstration(ids, cloned)


def clone(out: Path, seed: int = 0) -> None:
    """Goes on from the weights of the returns desk, with its tokenizer."""
    import torch
    from clone_policy import PADDING, backward, preamble_of, token_id
    from renderers import Qwen3RendererConfig, create_renderer
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    torch.manual_seed(seed)
    source = embedded_path(EMBEDDED_POLICY)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = Qwen3ForCausalLM.from_pretrained(source, dtype=torch.float32)
    renderer = create_renderer(tokenizer, Qwen3RendererConfig())
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    total = sum(steps for steps, _ in STAGES)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=total, pct_start=0.05)
    for number, (steps, shares) in enumerate(STAGES):
        dice = random.Random(seed * 100 + number)

        async def drawn(count: int, shares: Sequence[float] = shares, dice: random.Random = dice) -> list[Any]:
            tasks = [draw_queue(dice.randrange(10**6, 10**7), held_out=False) for _ in range(count)]
            return [await demonstration(task, shares, dice, renderer, tokenizer) for task in tasks]

        demonstrations = asyncio.run(drawn(min(steps * BATCH, 2000)))
        preamble = preamble_of(demonstrations)
        for step in range(steps):
            batch = sorted(dice.sample(demonstrations, BATCH), key=lambda each: len(each.token_ids))
            optimizer.zero_grad()
            loss = backward(model, preamble, batch, token_id(tokenizer, PADDING), rows=BATCH)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 20 == 0:
                print(f"stage {number + 1} step {step} loss {loss:.4f}", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    clone(parser.parse_args().out)
