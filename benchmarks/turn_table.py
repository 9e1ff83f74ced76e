"""Credit for turns on the desks themselves, by a policy that is a table: their tools, prompts and stand-in judge.

    OMP_NUM_THREADS=1 python benchmarks/turn_table.py retail_desk --groups 4 --seeds 0 1 2 3 4

A clerk plays each desk, or the queue of `return_queue.py`. What it decides is drawn by one logit for each kind of
decision (does it look the order up, read the policy, ask for the colour, obey what it read …), and at every turn it
draws a further one that changes nothing, as the wording of a model's turn does. The judge is the stand-in by the
desk's rules that it reads, or the queue's own judge, with its states; one group a step, two orders. The rate is of a
normalized gradient.

Printed, as JSON, for each size of groups and each leg (`mean`, which is without a critic, or a lambda): `each`, by
seed the first step after which the careful choice has the probability `--level`, on the mean over the kinds of
decisions that the rules look at, or `--steps` where it never has; their `median` and `mean`; and the means over the
seeds of that probability at the end (`last`), of the turns of an attempt, and of the steps whose states misled, so
that lambda was 1 (`switched`); and the CPU seconds.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import return_queue

from gavel.judge.audit.health import states_health, states_mislead
from gavel.judge.config import JudgeConfig
from gavel.judge.judge import Judge
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.library import booking_desk, retail_desk, returns_desk
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.scripted_agent import Call, played_by
from gavel.scenarios.task import Task
from gavel.trainer.data.advantages import critic_advantages

Decide = Callable[[str], bool]
Clerk = Generator[Call | str, str, None]
CARELESS, IDLE = -0.8, 0.0
"""Logits at first: of care, and of what changes nothing."""


def returns(task: Task, opening: str, decide: Decide, dice: Random) -> Clerk:
    case = returns_desk.Case.model_validate(task.data)
    looked = decide("look up")
    if looked:
        yield Call("look_up_order", {"order_id": case.order_id})
    read = decide("read" if looked else "read unseen")
    if read:
        yield Call("read_policy", {"item": case.item})
    right = looked and read and decide("obey")
    act = case.right_action if right else "refund" if decide("grant") else dice.choice(returns_desk.ACTIONS)
    yield Call(act, {"order_id": case.order_id})
    yield "It is done." if decide("tell") else ""


def queue(task: Task, opening: str, decide: Decide, dice: Random) -> Clerk:
    for order in return_queue.Waiting.model_validate(task.data).orders:
        turns = returns(returns_desk.draw_task(order), "", decide, dice)
        while isinstance(turn := next(turns), Call):
            yield turn
    yield "It is done."


def booking(task: Task, opening: str, decide: Decide, dice: Random) -> Clerk:
    clerk = booking_desk.demonstrate(task, "careful", dice)
    careful: list[Call | str] = []
    told: str | None = None
    while True:  # the careful clerk, some of whose looks are left out, and what follows from them is guessed
        try:
            turn = clerk.send(told) if told is not None else next(clerk)
        except StopIteration:
            return
        careful.append(turn)
        if isinstance(turn, str):
            yield turn if decide("tell") else ""
            return
        arguments = dict(turn.arguments)
        if turn.name == "cancel_booking" and not decide("take what was found"):
            arguments["booking"] = f"B{dice.randint(1, 6)}"
        if turn.name == "book_room" and not decide("take the first"):
            arguments["room"] = dice.choice(booking_desk.ROOMS)
        told = yield Call(turn.name, arguments)


def retail(task: Task, opening: str, decide: Decide, dice: Random) -> Clerk:
    """The expert, that may leave out the policy, the colours or the stock, and grant what is forbidden."""
    if "I am " not in opening:
        opening += yield "Could you tell me your name and postcode?"
    name, postcode = retail_desk._WHO.findall(opening)[0]  # pyright: ignore[reportPrivateUsage]
    customer = json.loads((yield Call("find_customer", {"name": name, "postcode": postcode})))
    orders = []
    for number in customer["orders"]:
        orders.append(json.loads((yield Call("get_order", {"order_id": number}))))
    if "redirect" in opening:
        asked = decide("ask the address")
        address = "1 Mill Lane"
        if asked:
            address = retail_desk._NEW_ADDRESS.findall((yield "What is your new address?"))[0]  # pyright: ignore[reportPrivateUsage]
        allowed = ["new", "packed"]
        if decide("read addresses"):
            allowed = json.loads((yield Call("read_policy", {"topic": "addresses"})))["allowed_statuses"]
        for order in orders:
            if order["status"] in allowed:
                yield Call("change_address", {"order_id": order["order_id"], "address": address})
    for request, pattern in retail_desk._WISHES:  # pyright: ignore[reportPrivateUsage]
        for wanted in pattern.findall(opening):
            found = [(order, item) for order in orders for item in order["items"] if item["name"] == wanted]
            if found:
                yield from _deal_with(request, *found[0], customer["customer_id"], decide, dice)
    yield "Your requests have been dealt with as our policies allow."


def _deal_with(request: Any, order: Any, item: Any, customer: str, decide: Decide, dice: Random) -> Clerk:
    policy: Any = {"allowed_statuses": ["new", "packed"], "within_days": 99}
    policy |= {"opened_items_refunded_to": "card", "opened_items": True}
    where = {"order_id": order["order_id"], "item": item["name"]}
    if decide(f"read {request}"):
        policy |= json.loads((yield Call("read_policy", {"topic": retail_desk.TOPICS[request]})))
    forbidden = ""
    if request == "cancel":
        forbidden = "" if order["status"] in policy["allowed_statuses"] else "too_late"
    elif order["days"] > policy["within_days"]:
        forbidden = "too_late"
    elif item["opened"] and "no" in (policy["opened_items_refunded_to"], policy["opened_items"] or "no"):
        forbidden = "opened"
    if forbidden and decide("obey"):
        about = {"customer_id": customer, "item": item["name"], "request": request, "reason": forbidden}
        yield Call("decline", about)
    elif request == "cancel":
        yield Call("cancel_order", {"order_id": order["order_id"]})
    elif request == "return":
        refund_to = policy["opened_items_refunded_to"] if item["opened"] else "card"
        yield Call("return_item", {**where, "refund_to": "card" if refund_to == "no" else refund_to})
    else:
        liked = [dice.choice(("red", "blue", "green", "black", "white", "yellow"))]
        if decide("ask the colour"):
            told = yield f"Which colour would you like for the {item['name']}?"
            liked = next((own for name, *own in retail_desk._COLOURS.findall(told) if name == item["name"]), liked)  # pyright: ignore[reportPrivateUsage]
        if decide("find stock"):
            stock = json.loads((yield Call("find_stock", {"item": item["name"]})))
            liked = [colour for colour in liked if colour in stock] or liked
        yield Call("exchange_item", {**where, "colour": liked[0]})


CLERKS = {"return_queue": queue, "returns_desk": returns, "booking_desk": booking, "retail_desk": retail}
READ = {"retail_desk": 4}
"""Of a rubric, how many rules the stand-in reads, from the first; all where none is named."""
LOOKED_AT = {
    "return_queue": ("look up", "read", "obey"),
    "returns_desk": ("look up", "read", "obey", "tell"),
    "booking_desk": ("take what was found", "take the first", "tell"),
    "retail_desk": ("read addresses", "read return", "read exchange", "read cancel", "find stock"),
}
"""The kinds of decisions that the rules look at."""


async def learn(name: str, leg: str, seed: int, *, size: int, steps: int, rate: float, level: float) -> dict[str, Any]:
    """Trains a table. `leg`: `mean` or a lambda."""
    scenario = return_queue.scenario if name == "return_queue" else find_scenario(name)
    rules = "\n".join((scenario.rubric or "").splitlines()[: READ.get(name)])
    judge = Judge(
        _queue_judge if name == "return_queue" else "stand-in",
        rubric=rules,
        config=JudgeConfig(states=leg != "mean", seed=seed),
    )
    random, logits = Random(f"{name}/{seed}"), dict[str, float]()
    switched = turns = attempts = 0
    reached: int | None = None
    for step in range(1, steps + 1):
        task = scenario.tasks("train")[random.randrange(400)]
        drawn: list[dict[int, list[tuple[str, float]]]] = []
        members = []
        for _ in range(size):
            own: dict[int, list[tuple[str, float]]] = {}
            members.append(await rollout(played_by(_player(name, logits, own, random), task), scenario, task, seed=0))
            drawn.append(own)
        judged = await judge.score(TrajectoryGroup(members))
        rewards = [member.reward or 0.0 for member in judged]
        if None in [member.reward for member in judged]:
            continue  # all alike: there is nothing to compare
        states = [list(each.judgement.states) if each.judgement else [] for each in judged]
        lengths = [sum(m["role"] == "assistant" for m in member.messages()) for member in members]
        turns, attempts = turns + sum(lengths), attempts + size
        gae_lambda = 1.0 if leg == "mean" else float(leg)
        if leg != "mean" and states_mislead(states_health([judged])):
            gae_lambda, switched = 1.0, switched + 1
        paid = critic_advantages(rewards, states, gae_lambda)
        gradient: dict[str, float] = {}
        mean = fmean(rewards)
        for reward, advantages, length, own in zip(rewards, paid, lengths, drawn, strict=True):
            by_turn = advantages or [reward - mean] * length
            for turn, made in own.items():
                for kind, slope in made:
                    gradient[kind] = gradient.get(kind, 0.0) + slope * by_turn[min(turn, length - 1)]
        if norm := math.sqrt(math.fsum(each**2 for each in gradient.values())):
            for kind, value in gradient.items():
                logits[kind] = logits.get(kind, _start(kind)) + rate * value / norm
        if _care(name, logits) >= level:
            reached = step
            break
    found = {"scenario": name, "leg": leg, "seed": seed, "group": size, "rate": rate, "steps": reached}
    return found | {"last": _care(name, logits), "turns": turns / attempts, "switched": switched}


async def _queue_judge(messages: Sequence[Message], schema: Mapping[str, Any]) -> str:
    return return_queue.reply(messages)


def _care(name: str, logits: dict[str, float]) -> float:
    return fmean(_probability(kind, logits) for kind in LOOKED_AT[name])


def _probability(kind: str, logits: dict[str, float]) -> float:
    return 1 / (1 + math.exp(-logits.get(kind, _start(kind))))


def _start(kind: str) -> float:
    return IDLE if kind.startswith("wording") else CARELESS


def _player(name: str, logits: dict[str, float], own: dict[int, list[tuple[str, float]]], random: Random) -> Any:
    """The clerk, whose decisions are drawn and kept by the turn that they are made for, with the slope of their
    log-probability."""

    def play(task: Task, opening: str, dice: Random) -> Clerk:
        turn = 0

        def decide(kind: str) -> bool:
            right = _probability(kind, logits)
            yes = random.random() < right
            own.setdefault(turn, []).append((kind, yes - right))
            return yes

        clerk = CLERKS[name](task, opening, decide, random)
        said: str | None = None
        while True:
            try:
                made = clerk.send(said) if said is not None else next(clerk)  # pyright: ignore[reportArgumentType]
            except StopIteration:
                return
            decide(f"wording {turn}")
            said = yield made
            turn += 1

    return play


async def run(options: argparse.Namespace) -> None:
    for size in options.groups:
        taken: dict[str, list[float]] = {}
        for leg in options.legs:
            started = time.process_time()
            settings = {"size": size, "steps": options.steps, "rate": options.rate, "level": options.level}
            found = [await learn(options.scenario, leg, seed, **settings) for seed in options.seeds]
            taken[leg] = [each["steps"] or options.steps for each in found]
            told = {"median": median(taken[leg]), "mean": round(fmean(taken[leg]), 1), "each": taken[leg]}
            told |= {key: round(fmean(each[key] for each in found), 2) for key in ("last", "turns", "switched")}
            seconds = round(time.process_time() - started)
            print(
                json.dumps({"scenario": options.scenario, "group": size, "leg": leg, **told, "cpu": seconds}),
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=CLERKS)
    parser.add_argument("--legs", nargs="+", default=["mean", "0.5"])
    parser.add_argument("--groups", type=int, nargs="+", default=[4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.4)
    parser.add_argument("--level", type=float, default=0.85)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
