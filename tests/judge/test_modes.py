"""Modes: anchors, which hold scores to one scale, and pairs."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.anchors import MAX_ANCHORS, Anchor, read_anchors, read_attempts
from gavel.judge.panel.modes import BLOCK
from gavel.judge.prompt.provider_formats import View
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.judge.groups import by_length, desk, saying


def anchor(text: str, score: float) -> Anchor:
    return Anchor(saying(text).trajectories[0], score)


AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA"}}
HEARD = Trajectory(messages_and_choices=[{"role": "user", "content": [AUDIO]}])


async def harsh(messages, schema):
    return json.dumps({label: score / 2 for label, score in by_length(messages).items()})


async def test_one_anchor_moves_the_scale_and_two_stretch_it():
    group = saying("a" * 3, "a" * 5)
    one = await Judge(harsh, anchors=[anchor("b" * 4, 0.4)]).score(group)
    assert [trajectory.reward for trajectory in one] == pytest.approx([0.35, 0.45])
    two = await Judge(harsh, anchors=[anchor("b" * 4, 0.4), anchor("b" * 8, 0.8)]).score(group)
    assert [trajectory.reward for trajectory in two] == pytest.approx([0.3, 0.5])


async def test_anchors_are_shown_like_any_member_and_are_none_of_the_judged_group():
    prompts: list[str] = []

    async def judge(messages, schema):
        prompts.append(messages[1]["content"])
        return json.dumps(by_length(messages))

    group = saying("aaa", "aaaaa", metadata={"task": 7})
    judged = await Judge(judge, anchors=[anchor("bbbb", 0.5)], orders=2).score(group)
    assert len(judged) == 2
    assert judged.metadata == {"task": 7}
    assert (judged.judgement.mode, judged.judgement.status, judged.judgement.calls) == ("anchored", "scored", 2)
    for prompt in prompts:
        assert len(re.findall(r"trajectory \w+\n¦\w+ assistant: \w+\n", prompt)) == 3
        assert not re.search("anchor|reference|0\\.5", prompt)
    assert judged.trajectories[0].messages() == group.trajectories[0].messages()


async def test_every_block_of_a_large_group_holds_the_anchors_and_all_are_on_their_scale():
    shown: list[set[float]] = []

    async def best_of_its_prompt_gets_one(messages, schema):
        scores = by_length(messages)
        shown.append(set(scores.values()))
        return json.dumps({label: 1 + (score - max(scores.values())) / 4 for label, score in scores.items()})

    anchors = [anchor("b" * 3, 0.15), anchor("b" * 15, 0.75)]
    judge = Judge(best_of_its_prompt_gets_one, anchors=anchors, orders=1)
    judged = await judge.score(saying(*("a" * length for length in range(1, 20) if length not in (3, 15))))
    assert all({0.3, 1.5} <= scores and len(scores) <= BLOCK for scores in shown)
    assert len(shown) == 3
    assert [t.reward for t in judged] == pytest.approx([n / 20 for n in range(1, 20) if n not in (3, 15)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: anchor("a", 1.1),
        lambda: anchor("a", math.nan),
        lambda: Anchor(Trajectory(), 0.5),
        lambda: Judge("stand-in", anchors=[anchor("a" * n, 0.5) for n in range(1, MAX_ANCHORS + 2)]),
        lambda: Judge("stand-in", anchors=[anchor("low", 0.2)], mode="pairwise"),
        lambda: Judge("stand-in", anchors=[anchor("aa", 0.5), anchor("b", 0.5), anchor("aa", 0.6)]),
        lambda: read_attempts({0: desk()}, (Anchor(HEARD, 0.5),), View(), "unscored"),
    ],
)
def test_anchors_that_make_no_sense_or_are_not_seen_are_refused(make):
    with pytest.raises(JudgeError):
        make()


def scored(file: Path, *groups: Mapping[str, float | None]) -> Path:
    for group in groups:
        members = [
            desk(ending=text, metrics={"turns": 1} | ({} if score is None else {"human": score}))
            for text, score in group.items()
        ]
        TrajectoryStore(file).append(TrajectoryGroup(members))
    return file


def endings(file: Path, most: int) -> list[tuple[str | None, float]]:
    return [(anchor.trajectory.messages()[-1].get("content"), anchor.score) for anchor in read_anchors(file, most=most)]


def test_anchors_are_spread_over_the_scores_from_the_best_to_the_worst(tmp_path: Path) -> None:
    file = scored(tmp_path / "a.jsonl.zst", {"bad": 0.1, "skipped": None, "fair": 0.5}, {"good": 0.9, "poor": 0.2})
    assert endings(file, 2) == [("good", 0.9), ("bad", 0.1)]
    assert endings(file, 3) == [("good", 0.9), ("poor", 0.2), ("bad", 0.1)]
    assert endings(file, 6) == [("good", 0.9), ("fair", 0.5), ("poor", 0.2), ("bad", 0.1)]


def test_what_is_no_set_of_anchors_is_refused(tmp_path: Path) -> None:
    wrong = [[{"one": None, "two": None}], [{"one": 0.5, "two": 7.0}], [{"same": 0.5}, {"same": 0.9}]]
    for number, groups in enumerate(wrong):
        with pytest.raises(JudgeError):
            read_anchors(scored(tmp_path / f"{number}.jsonl.zst", *groups), most=3)
    with pytest.raises(JudgeError):
        read_anchors(scored(tmp_path / "a.jsonl.zst", {"one": 0.5, "two": 0.9}), most=1)


async def prefers_length_a_little(messages, schema):
    return json.dumps({label: score / 5 for label, score in by_length(messages).items()})


async def test_every_call_shows_two_members_and_each_pair_is_shown_both_ways():
    shown: list[tuple[float, ...]] = []

    async def judge(messages, schema):
        shown.append(tuple(by_length(messages).values()))
        return await prefers_length_a_little(messages, schema)

    judged = await Judge(judge, mode="pairwise").score(saying("a", "bb", "ccc", "dddd"))
    assert len(shown) == 12
    assert len(set(shown)) == 12
    assert all(len(pair) == 2 for pair in shown)
    rewards = [trajectory.reward or 0.0 for trajectory in judged]
    assert rewards == sorted(rewards)
    assert 0 < rewards[0] < rewards[-1] < 1
    whole = judged.judgement
    assert (whole.mode, whole.status, whole.calls) == ("pairwise", "scored", 12)
    for trajectory in judged:
        assert len(trajectory.judgement.votes) == 6
        assert sorted(vote.position for vote in trajectory.judgement.votes) == [0, 0, 0, 1, 1, 1]
        assert trajectory.judgement.standard_error is not None


async def test_members_that_lost_calls_cut_off_from_the_most_are_unscored():
    async def judge(messages, schema):
        """Fails on pairs that are not of one part."""
        if not any(set(by_length(messages).values()) <= part for part in ({0.1, 0.2, 0.3}, {0.4, 0.5})):
            raise ValueError("no idea")
        return await prefers_length_a_little(messages, schema)

    group = saying("a", "bb", "ccc", "dddd", "eeeee", "ffffff")
    judged = await Judge(judge, mode="pairwise").score(group)
    rewards = [trajectory.reward for trajectory in judged]
    assert rewards[3:] == [None, None, None]
    assert all(reward is not None for reward in rewards[:3])
    reasons = [t.judgement.reason or "" for t in judged if t.judgement]
    assert "cut it off" in reasons[3]
    assert "no idea" in reasons[3]
    assert reasons[5].startswith("no vote")
    assert judged.judgement.status == "partial"


async def test_a_pair_of_which_one_is_declined_tells_nothing_of_the_other():
    async def judge(messages, schema):
        scores = json.loads(await prefers_length_a_little(messages, schema))
        return json.dumps({label: None if score < 0.03 else score for label, score in scores.items()})

    judged = await Judge(judge, mode="pairwise").score(saying("a", "bb", "ccc"))
    declined, *others = judged
    assert declined.reward is None
    assert "declined" in declined.judgement.reason
    assert others[0].reward < others[1].reward
