"""The returns desk: its cases, its tools, its measures and its demonstrations."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

from gavel.scenarios.library.returns_desk import (
    ACTIONS,
    CLOSINGS,
    ITEMS,
    OUTCOME_SHARES,
    Action,
    Call,
    Case,
    Clerk,
    demonstrate,
    draw_case,
    draw_task,
    hand_reward,
    is_held_out,
    looked_before_acting,
    scenario,
    succeeded,
)
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import MessagesAndChoices, Trajectory

untimed = settings(deadline=None)

order_numbers = st.integers(1000, 9999)
TASKS: dict[Action, Task] = {
    action: next(task for task in scenario.tasks() if Case.model_validate(task.data).right_action == action)
    for action in ACTIONS
}
LOOK, READ = "look_up_order", "read_policy"


def case_of(task: Task) -> Case:
    return Case.model_validate(task.data)


# --- cases --------------------------------------------------------------------------------------------------------


def test_the_case_of_an_order_number_never_changes() -> None:
    """The embedded policy was cloned from these cases."""
    assert draw_case(1000) == Case(order_id="1000", item="blanket", days=27, opened=False, window=7, opened_ok=False)
    assert draw_case(4711) == Case(order_id="4711", item="toaster", days=66, opened=True, window=30, opened_ok=False)
    held_out = [number for number in range(1000, 1030) if is_held_out(number)]
    assert held_out == [1000, 1002, 1006, 1007, 1009, 1021, 1024, 1029]
    assert draw_task(1001).user == "Hello, I would like to return order 1001 for a refund."


@pytest.mark.parametrize(
    ("days", "opened", "opened_ok", "right"),
    [
        (30, False, False, "refund"),
        (30, True, True, "refund"),
        (30, True, False, "exchange"),
        (31, False, True, "deny"),
        (31, True, False, "deny"),
    ],
)
def test_the_right_action_follows_from_order_and_policy(days: int, opened: bool, opened_ok: bool, right: str) -> None:
    case = Case(order_id="1", item="lamp", days=days, opened=opened, window=30, opened_ok=opened_ok)
    assert case.right_action == right


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_every_action_is_right_in_its_share_of_the_cases(split) -> None:
    tasks = scenario.tasks(split)
    counts = Counter(case_of(task).right_action for task in tasks)
    for action, share in OUTCOME_SHARES.items():
        assert counts[action] / len(tasks) == pytest.approx(share, abs=0.04)


def test_no_item_tells_what_is_right() -> None:
    counts: dict[str, Counter[str]] = {item: Counter() for item in ITEMS}
    for task in scenario.tasks():
        case = case_of(task)
        counts[case.item][case.right_action] += 1
    for item in ITEMS:
        assert max(counts[item].values()) < 0.55 * counts[item].total()


@untimed
@given(order_numbers)
def test_the_customer_names_the_order_and_nothing_else_that_counts(number: int) -> None:
    task = draw_task(number)
    assert [word.strip(".") for word in task.user.split() if word.strip(".").isdigit()] == [str(number)]
    assert not any(item in task.user for item in ITEMS)
    assert task.data == draw_case(number).model_dump()


# --- tools --------------------------------------------------------------------------------------------------------


async def test_the_tools_tell_the_facts_of_the_order() -> None:
    task = TASKS["exchange"]
    case = case_of(task)
    order = await scenario.toolbox.call(LOOK, json.dumps({"order_id": case.order_id}), task)
    policy = await scenario.toolbox.call(READ, json.dumps({"item": case.item}), task)
    assert json.loads(order.content) == {"item": case.item, "days": case.days, "opened": case.opened}
    assert json.loads(policy.content) == {"window": case.window, "opened_ok": case.opened_ok}
    assert not order.error
    assert not policy.error


@pytest.mark.parametrize("name", [LOOK, READ, *ACTIONS])
async def test_the_tools_know_nothing_but_the_order_of_the_task_and_its_item(name: str) -> None:
    task, other = TASKS["refund"], TASKS["deny"]
    item = next(item for item in ITEMS if item != case_of(task).item)
    given = {"item": item} if name == READ else {"order_id": other.id}
    assert (await scenario.toolbox.call(name, json.dumps(given), task)).error


# --- measures -----------------------------------------------------------------------------------------------------


async def episode(task: Task, *tools: str | tuple[str, dict[str, str]], closing: str | None = "Done.") -> Trajectory:
    """Calls the tools one by one, really, then says `closing` (None = stops after the last result)."""
    case = case_of(task)
    items: MessagesAndChoices = [{"role": "system", "content": scenario.system}, {"role": "user", "content": task.user}]
    for number, tool in enumerate(tools):
        given = {"item": case.item} if tool == READ else {"order_id": case.order_id}
        name, arguments = tool if isinstance(tool, tuple) else (tool, given)
        text = json.dumps(arguments)
        call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": text}}
        items.append(choice({"role": "assistant", "content": None, "tool_calls": [call]}))
        result = await scenario.toolbox.call(name, text, task)
        items.append({"role": "tool", "tool_call_id": f"c{number}", "content": result.content})
    if closing is not None:
        items.append(choice({"role": "assistant", "content": closing}))
    return Trajectory(messages_and_choices=items, metadata={"task": task.model_dump(mode="json")})


def choice(message: dict) -> Choice:
    return Choice.model_validate({"index": 0, "finish_reason": "stop", "message": message})


@pytest.mark.parametrize("right", ACTIONS)
async def test_only_the_right_action_succeeds(right: Action) -> None:
    for action in ACTIONS:
        trajectory = await episode(TASKS[right], LOOK, READ, action)
        assert succeeded(trajectory) == (action == right)
        assert looked_before_acting(trajectory)
        assert hand_reward(trajectory) == pytest.approx(1.0 if action == right else 0.2)


async def test_the_right_action_unseen_succeeds_without_credit_for_looking() -> None:
    trajectory = await episode(TASKS["refund"], "refund")
    assert succeeded(trajectory)
    assert not looked_before_acting(trajectory)
    assert hand_reward(trajectory) == pytest.approx(0.8)


@pytest.mark.parametrize("actions", [("refund", "refund"), ("refund", "deny"), ("deny", "refund")])
async def test_acting_twice_does_not_succeed(actions: tuple[str, str]) -> None:
    trajectory = await episode(TASKS["refund"], LOOK, READ, *actions)
    assert not succeeded(trajectory)
    assert hand_reward(trajectory) == pytest.approx(0.2)


@pytest.mark.parametrize("closing", [None, "", " \n"])
async def test_a_customer_who_is_told_nothing_is_no_success(closing: str | None) -> None:
    assert not succeeded(await episode(TASKS["refund"], LOOK, READ, "refund", closing=closing))


@pytest.mark.parametrize("status", ["truncated", "failed"])
async def test_an_episode_that_was_cut_off_is_no_success(status: str) -> None:
    trajectory = await episode(TASKS["refund"], LOOK, READ, "refund")
    assert not succeeded(trajectory.model_copy(update={"status": status}))


@pytest.mark.parametrize("before", [[], [LOOK], [READ], [LOOK, LOOK], ["exchange", LOOK, READ]])
async def test_who_did_not_read_both_before_the_first_action_did_not_look(before: list[str]) -> None:
    assert not looked_before_acting(await episode(TASKS["refund"], *before, "refund"))


async def test_calls_that_were_answered_with_an_error_do_not_count() -> None:
    wrong: dict[str, str] = {"order_id": "1"}
    trajectory = await episode(TASKS["refund"], LOOK, READ, ("deny", wrong), ("refuse", {}), "refund")
    assert succeeded(trajectory)
    assert looked_before_acting(trajectory)
    blind = await episode(TASKS["refund"], (LOOK, wrong), (READ, {"item": "unicorn"}), "refund")
    assert not looked_before_acting(blind)


# --- demonstrations -----------------------------------------------------------------------------------------------


def shown(task: Task, clerk: Clerk, seed: int) -> tuple[list[str], str]:
    """The tools that a clerk calls, and the closing words."""
    *calls, closing = demonstrate(task, clerk, random.Random(seed))
    assert isinstance(closing, str)
    assert all(isinstance(call, Call) for call in calls)
    return [call.name for call in calls if isinstance(call, Call)], closing


async def played(task: Task, clerk: Clerk, seed: int) -> Trajectory:
    *calls, closing = demonstrate(task, clerk, random.Random(seed))
    assert isinstance(closing, str)
    made = [(call.name, call.arguments) for call in calls if isinstance(call, Call)]
    return await episode(task, *made, closing=closing)


@pytest.mark.parametrize("clerk", ["careful", "hasty", "guess", "sloppy"])
async def test_every_clerk_makes_calls_that_the_tools_answer_and_fits_the_turns(clerk: Clerk) -> None:
    for task in TASKS.values():
        for seed in range(20):
            trajectory = await played(task, clerk, seed)
            results = [message["content"] for message in trajectory.messages() if message["role"] == "tool"]
            assert not any(result.startswith('{"error"') for result in results)
            assert len(list(trajectory.choices())) <= scenario.max_turns


async def test_the_careful_clerk_works_by_the_book() -> None:
    for right, task in TASKS.items():
        for seed in range(20):
            assert shown(task, "careful", seed)[0] == [LOOK, READ, right]
            assert hand_reward(await played(task, "careful", seed)) == pytest.approx(1.0)


def test_the_hasty_clerk_refunds_unseen() -> None:
    for task in TASKS.values():
        for seed in range(20):
            calls, closing = shown(task, "hasty", seed)
            assert calls == ["refund"]
            assert closing in CLOSINGS["refund"]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_guesser_does_anything_unseen(task: Task) -> None:
    calls = [shown(task, "guess", seed)[0] for seed in range(60)]
    assert {tuple(names) for names in calls} == {(action,) for action in ACTIONS}


def test_the_sloppy_clerk_looks_but_skips_the_policy_or_the_closing_at_times_and_acts_at_random() -> None:
    episodes = [shown(TASKS["exchange"], "sloppy", seed) for seed in range(200)]
    assert all(calls[0] == LOOK for calls, _ in episodes)
    assert {calls[-1] for calls, _ in episodes} == set(ACTIONS)
    assert {READ in calls for calls, _ in episodes} == {True, False}
    assert {closing == "" for _, closing in episodes} == {True, False}


def test_a_call_is_written_as_the_embedded_model_says_it() -> None:
    call = Call(LOOK, {"order_id": "1007"})
    assert call.text == ('<tool_call>\n{"name": "look_up_order", "arguments": {"order_id": "1007"}}\n</tool_call>')
