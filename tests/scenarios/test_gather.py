"""Gathering: order, bounds, isolation of failures, and what the terminal shows. Events order things, never clocks."""

import asyncio
import contextlib
import io
import math
import sys
from collections import Counter

import pytest
from openai.types.chat.chat_completion import Choice

from gavel.scenarios.gather import AfterEach, GatherError, gather_trajectories, gather_trajectory_groups, metric_means
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.scenarios.scripts import act, names, nothing_left_unawaited


async def fail(after: asyncio.Event | None = None) -> Trajectory:
    if after:
        await after.wait()
    raise ValueError("boom")


async def test_groups_and_members_keep_their_input_places_whatever_they_are() -> None:
    complete = TrajectoryGroup([Trajectory(metadata={"name": "complete"})])

    async def awaited() -> TrajectoryGroup:
        return await TrajectoryGroup([act("awaited")])

    async def unawaited() -> TrajectoryGroup:
        return TrajectoryGroup([act("unawaited")])

    last = asyncio.Event()
    late = TrajectoryGroup([act("late", after=last), act("early")])
    sources = [late, complete, awaited(), unawaited(), TrajectoryGroup([act("last", then=last)])]
    groups = await gather_trajectory_groups(sources)
    assert names(*groups) == [["late", "early"], ["complete"], ["awaited"], ["unawaited"], ["last"]]


async def test_a_group_is_scored_while_others_still_roll_out() -> None:
    scored = asyncio.Event()

    def score(group: TrajectoryGroup) -> TrajectoryGroup:
        scored.set()
        return group.model_copy(update={"metrics": {"scored": True}})

    slow = TrajectoryGroup([act("slow", after=scored)])
    groups = await gather_trajectory_groups([slow, TrajectoryGroup([act("fast")])], after_each=score)
    assert names(*groups) == [["slow"], ["fast"]]
    assert all(group.metrics == {"scored": True} for group in groups)


async def test_none_drops_a_group_and_a_list_extends(caplog: pytest.LogCaptureFixture) -> None:
    async def choose(group: TrajectoryGroup) -> TrajectoryGroup | list[TrajectoryGroup] | None:
        return {"a": None, "b": [group, group], "c": group}[str(group.trajectories[0].metadata["name"])]

    groups = await gather_trajectory_groups([TrajectoryGroup([act(name)]) for name in "abc"], after_each=choose)
    assert names(*groups) == [["b"], ["b"], ["c"]]
    assert not caplog.messages
    assert await gather_trajectory_groups([groups[0]], after_each=lambda group: None) == []
    assert "after_each gave None" in caplog.text


def raising(error: BaseException) -> AfterEach:
    async def raises(group: TrajectoryGroup) -> TrajectoryGroup:
        raise error

    return raises


@pytest.mark.parametrize(
    ("after_each", "why"),
    [
        (raising(RuntimeError("the judge is out")), "RuntimeError: the judge is out"),
        (lambda group: ["group"], "TypeError: after_each must give"),
        (raising(asyncio.CancelledError()), "RuntimeError: it was cancelled from within"),
    ],
)
async def test_a_failing_after_each_leaves_the_group_unscored_with_the_reason(after_each: AfterEach, why: str) -> None:
    complete = TrajectoryGroup([Trajectory(reward=0.25, metrics={"turns": 2})])
    pending = TrajectoryGroup([act(reward=0.5), act(reward=0.75)])
    groups = await gather_trajectory_groups([complete, pending], after_each=after_each, max_exceptions=2)
    assert [len(group.exceptions) for group in groups] == [1, 1]
    assert [[t.metrics.get("independent_reward") for t in group] for group in groups] == [[0.25], [0.5, 0.75]]
    for group in groups:
        assert group.judgement is not None
        assert group.judgement.status == "unscored"
        assert (group.judgement.reason or "").startswith(f"scoring failed: {why}")
        assert all(t.reward is None and t.judgement for t in group)
        assert {t.judgement.reason for t in group if t.judgement} == {group.judgement.reason}
    (original,) = complete
    assert (original.reward, original.metrics, complete.exceptions) == (0.25, {"turns": 2}, [])
    with pytest.raises(GatherError, match=r"^after_each failed for 1 group, more than") as caught:
        await gather_trajectory_groups([complete], after_each=after_each)
    assert "max_exceptions" not in caught.value.remedy
    assert isinstance(caught.value.__cause__, Exception)


async def test_too_many_failures_cancel_the_rest_and_leave_nothing_unawaited() -> None:
    cancelled: list[str] = []

    async def endless(name: str) -> Trajectory:
        try:
            return await never()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    async def endless_group() -> TrajectoryGroup:
        return await TrajectoryGroup([endless("inner")])

    with nothing_left_unawaited(), pytest.raises(GatherError):
        await gather_trajectory_groups(
            [
                TrajectoryGroup([endless("a"), act()]),
                endless_group(),
                TrajectoryGroup([fail(), fail()]),
                TrajectoryGroup([endless("waits for a slot"), endless("waits for a slot")]),
            ],
            max_exceptions=1,
            concurrency=4,
        )
    assert {"a", "inner"} <= set(cancelled)


@pytest.mark.parametrize("share", [0.25, 1.0, 2, math.inf, 0.24, 1])
async def test_a_share_counts_against_all_rollouts(share: float) -> None:
    groups = [TrajectoryGroup([act(), fail(), act(), act()]), TrajectoryGroup([act(), act(), act(), fail()])]
    refused = pytest.raises(GatherError, match=r"2 of 8 .* max_exceptions")
    with refused if repr(share) in ("0.24", "1") else contextlib.nullcontext():
        assert len(await gather_trajectory_groups(groups, max_exceptions=share)) == 2


@pytest.mark.parametrize("options", [{"max_exceptions": -1}, {"max_exceptions": math.nan}, {"concurrency": 0}])
async def test_an_impossible_option_is_refused_and_leaves_nothing_unawaited(options: dict[str, float]) -> None:
    with nothing_left_unawaited(), pytest.raises(ValueError, match=next(iter(options))):
        await gather_trajectory_groups([TrajectoryGroup([act()])], **options)  # type: ignore[arg-type]


async def never() -> Trajectory:
    await asyncio.Event().wait()
    return Trajectory()


async def never_even_when_cancelled() -> Trajectory:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


async def test_a_rollout_or_scoring_that_never_returns_is_an_exception_and_the_rest_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def score(group: TrajectoryGroup) -> TrajectoryGroup:
        if names(group) == [["e"]]:
            await never()
        elif names(group) == [["f"]]:
            await never_even_when_cancelled()
        return group

    monkeypatch.setattr("gavel.scenarios.deadline.GRACE_SECONDS", 0.01)
    waiting = [[act("a"), never(), act("c"), never_even_when_cancelled()], [act("d")], [act("e")], [act("f")]]
    groups = await gather_trajectory_groups(
        map(TrajectoryGroup, waiting), after_each=score, rollout_seconds=0.05, max_exceptions=4
    )
    assert names(*groups) == [["a", "c"], ["d"], ["e"], ["f"]]
    told = [[error.type for error in group.exceptions] for group in groups]
    assert told == [["TimeoutError", "StuckError"], [], ["TimeoutError"], ["StuckError"]]


async def test_the_time_limit_does_not_count_the_wait_for_a_slot() -> None:
    async def slow(number: int) -> Trajectory:
        await asyncio.sleep(0.2)
        return await act(str(number))

    members = [*map(slow, range(8)), fail()]
    found = await gather_trajectories(members, concurrency=1, rollout_seconds=1.2, max_exceptions=1)
    assert names(TrajectoryGroup(found)) == [[*map(str, range(8))]]


@pytest.mark.parametrize("limit", ["cancelled", "too many failures"])
async def test_a_gather_that_is_stopped_gives_the_finished_rollouts_to_its_caller(limit: str) -> None:
    last = asyncio.Event()

    async def made_inside() -> TrajectoryGroup:
        return await TrajectoryGroup([act("f"), never()])

    async def score(group: TrajectoryGroup) -> TrajectoryGroup:
        if names(group) == [["g"]]:
            await never()
        return group.model_copy(update={"metrics": {"scored": 1}})

    sources = (
        TrajectoryGroup([act("a"), never(), act("c"), act("d", then=last)]),
        TrajectoryGroup([act("e"), *([fail(after=last)] if limit != "cancelled" else ())]),
        made_inside(),
        TrajectoryGroup([act("g")]),
        TrajectoryGroup([never()]),
    )
    finished: list[TrajectoryGroup] = []
    gathering = asyncio.create_task(gather_trajectory_groups(iter(sources), after_each=score, finished=finished))
    await last.wait()
    await asyncio.sleep(0.01)
    gathering.cancel()
    with nothing_left_unawaited(), pytest.raises((asyncio.CancelledError, GatherError)):
        await gathering
    assert names(*finished) == [["a", "c", "d"], ["e"], ["f"], ["g"]]
    assert [error.type for error in finished[0].exceptions] == ["CancelledError"]
    scored = ["scored" in group.metrics for group in finished]
    assert scored == [False, limit == "cancelled", False, False]
    assert all(
        done or (group.judgement and group.judgement.reason) for done, group in zip(scored, finished, strict=True)
    )
    assert TrajectoryGroup.from_json(finished[0].to_json()) == finished[0]


async def test_concurrency_bounds_rollouts_over_all_groups_but_those_within_a_rollout() -> None:
    running, seen = Counter[str](), list[int]()

    async def counted() -> Trajectory:
        running["now"] += 1
        seen.append(running["now"])
        await asyncio.sleep(0)
        running["now"] -= 1
        return Trajectory()

    async def built_inside() -> TrajectoryGroup:
        return await TrajectoryGroup(counted() for _ in range(4))

    sources = [TrajectoryGroup(counted() for _ in range(4)), built_inside(), built_inside()]
    await gather_trajectory_groups(sources, concurrency=3)
    assert (max(seen), len(seen)) == (3, 12)

    async def with_helpers() -> Trajectory:
        helpers = await TrajectoryGroup(act("helper") for _ in range(3))
        return Trajectory(metadata={"name": len(helpers)})

    [group] = await gather_trajectory_groups([TrajectoryGroup([with_helpers(), with_helpers()])], concurrency=1)
    assert names(group) == [[3, 3]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_terminal_alone_shows_progress_scores_failures_and_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = Choice.construct(index=0, finish_reason="stop", message={}, token_ids=list(range(2000)))

    async def gather() -> None:
        sampled = act(messages_and_choices=[turn], metrics={"solved": True})
        group = TrajectoryGroup([sampled, fail()])
        await gather_trajectory_groups([group], after_each=score, max_exceptions=1, pbar_desc="[explore]")

    async def score(group: TrajectoryGroup) -> TrajectoryGroup:
        return TrajectoryGroup([trajectory.model_copy(update={"reward": 0.25}) for trajectory in group])

    await gather()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "140")
    await gather()
    for part in ("[explore]", "2/2", "reward 0.25", "solved 1.00", "1 failed", "2,000 tokens"):
        assert part in terminal.getvalue()


def test_a_mean_leaves_out_what_is_not_finite() -> None:
    given = [Trajectory(reward=reward, metrics={"m": 1.0}) for reward in (0.5, math.inf, math.nan, None)]
    assert metric_means(given) == {"reward": 0.5, "m": 1.0}
