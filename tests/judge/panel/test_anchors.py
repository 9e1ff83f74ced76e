import json
import math
import re
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.offline.simulated import Bias, Latent, SimulatedJudge
from gavel.judge.panel.aggregate import Answer, anchored
from gavel.judge.panel.anchors import MAX_ANCHORS, Anchor, check_anchors, read_anchors, read_attempts
from gavel.judge.panel.juror import Juror
from gavel.judge.panel.scales import fit_scale
from gavel.judge.panel.schedule import BLOCK, LARGEST_WHOLE, group_schedule
from gavel.judge.prompt.provider_formats import View
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.judge.groups import desk, saying

QUALITIES = {"sim-low": -1.5, "sim-high": 1.5, "sim-probe": 0.3}
QUALITIES |= {f"sim-weak{n}": -1.8 + n / 5 for n in range(7)} | {f"sim-strong{n}": 0.6 + n / 5 for n in range(7)}
TABLE = {name: Latent(quality) for name, quality in QUALITIES.items()}
WEAK = [f"sim-weak{n}" for n in range(7)]
STRONG = [f"sim-strong{n}" for n in range(7)]


def worth(quality: float) -> float:
    return 1 / (1 + math.exp(-quality))


def anchor(text: str, score: float) -> Anchor:
    return Anchor(saying(text).trajectories[0], score)


ANCHORS = [anchor("sim-low", worth(-1.5)), anchor("sim-high", worth(1.5))]


def by_length(messages) -> dict[str, float]:
    """A tenth for each letter of the member's message, by label."""
    shown = re.findall(r"trajectory (\w+)\n¦\w+ assistant: (\w*)", messages[1]["content"])
    return {label: len(text) / 10 for label, text in shown}


async def harsh(messages, schema):
    return json.dumps({label: score / 2 for label, score in by_length(messages).items()})


async def lenient(messages, schema):
    return json.dumps({label: 0.4 + score / 4 for label, score in by_length(messages).items()})


async def test_one_anchor_moves_the_scale_and_two_stretch_it():
    group = saying("a" * 3, "a" * 5)
    one = await Judge(harsh, anchors=[anchor("b" * 4, 0.4)]).score(group)
    assert [trajectory.reward for trajectory in one] == pytest.approx([0.35, 0.45])
    two = await Judge(harsh, anchors=[anchor("b" * 4, 0.4), anchor("b" * 8, 0.8)]).score(group)
    assert [trajectory.reward for trajectory in two] == pytest.approx([0.3, 0.5])


async def test_each_juror_s_scale_is_its_own():
    anchors = [anchor("b" * 2, 0.2), anchor("b" * 8, 0.8)]
    judged = await Judge([Juror(harsh, weight=3), lenient], anchors=anchors).score(saying("a" * 3, "a" * 5))
    assert [trajectory.reward for trajectory in judged] == pytest.approx([0.3, 0.5])
    assert [t.judgement and t.judgement.standard_error for t in judged] == pytest.approx([0, 0], abs=1e-9)


async def test_anchors_are_shown_like_any_member_and_are_none_of_the_judged_group():
    prompts: list[str] = []

    async def judge(messages, schema):
        prompts.append(messages[1]["content"])
        return json.dumps(by_length(messages))

    group = saying("aaa", "aaaaa", metadata={"task": 7})
    judged = await Judge(judge, anchors=[anchor("bbbb", 0.5)], orders=2).score(group)
    assert len(judged) == 2
    assert judged.metadata == {"task": 7}
    assert judged.judgement is not None
    assert (judged.judgement.mode, judged.judgement.status, judged.judgement.calls) == ("anchored", "scored", 2)
    for prompt in prompts:
        assert len(re.findall(r"trajectory \w+\n¦\w+ assistant: \w+\n", prompt)) == 3
        assert not re.search("anchor|reference|0\\.5", prompt)
    assert judged.trajectories[0].messages() == group.trajectories[0].messages()


@pytest.mark.parametrize("texts", [("aaa",), ("aaa", "aaa")])
async def test_a_group_without_a_difference_is_scored_beside_an_anchor(texts):
    judged = await Judge(harsh, anchors=[anchor("bbbb", 0.4)]).score(saying(*texts))
    assert [trajectory.reward for trajectory in judged] == pytest.approx([0.35] * len(texts))
    assert judged.judgement is not None
    assert judged.judgement.status == "scored"


async def test_a_member_that_is_an_anchor_as_well_is_shown_once_and_gets_votes():
    sizes: list[int] = []

    async def judge(messages, schema):
        sizes.append(len(by_length(messages)))
        return json.dumps(by_length(messages))

    judged = await Judge(judge, anchors=[anchor("aaaa", 0.6)]).score(saying("aaaa", "aa"))
    assert sizes == [2, 2]
    assert [trajectory.reward for trajectory in judged] == pytest.approx([0.6, 0.4])
    assert [len(t.judgement.votes) for t in judged if t.judgement] == [2, 2]


async def test_a_group_that_is_nothing_but_the_anchor_has_its_score_and_asks_nobody():
    async def never(messages, schema):
        raise AssertionError("asked")

    judged = await Judge(never, anchors=[anchor("aaaa", 0.6)]).score(saying("aaaa", "aaaa"))
    assert [trajectory.reward for trajectory in judged] == [0.6, 0.6]
    assert judged.judgement is not None
    assert (judged.judgement.status, judged.judgement.calls) == ("scored", 0)


async def test_a_judge_that_fails_beside_anchors_leaves_no_number():
    async def broken(messages, schema):
        raise ValueError("no idea")

    judged = await Judge(broken, anchors=[anchor("bbbb", 0.5)]).score(saying("a", "aa"))
    assert [trajectory.reward for trajectory in judged] == [None, None]
    assert judged.judgement is not None
    assert judged.judgement.status == "unscored"


async def test_where_an_anchor_is_shown_changes_over_the_orders():
    positions: list[int] = []

    async def judge(messages, schema):
        positions.append(list(by_length(messages).values()).index(0.4))
        return json.dumps(by_length(messages))

    await Judge(judge, anchors=[anchor("bbbb", 0.5)], orders=6).score(saying("aaa", "aaaaa"))
    assert sorted(positions) == [0, 0, 1, 1, 2, 2]


async def test_anchors_alone_are_not_judged_when_all_rollouts_failed():
    async def never(messages, schema):
        raise AssertionError("asked")

    failed = TrajectoryGroup(t.model_copy(update={"status": "failed"}) for t in saying("a", "b"))
    judged = await Judge(never, anchors=[anchor("bb", 0.2), anchor("bbbb", 0.5)]).score(failed)
    assert [trajectory.reward for trajectory in judged] == [None, None]


async def test_a_score_beyond_the_anchors_is_cut_off_and_moves_nobody_else():
    judged = await Judge(harsh, anchors=[anchor("b" * 2, 0.7)]).score(saying("a" * 4, "a" * 10))
    assert [trajectory.reward for trajectory in judged] == pytest.approx([0.8, 1.0])


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


@given(
    st.integers(LARGEST_WHOLE + 1, 60), st.integers(1, MAX_ANCHORS), st.lists(st.integers(1, 4), min_size=1), st.text()
)
def test_each_round_shows_members_once_and_anchors_in_every_block(members, anchors, counts, seed):
    everywhere = range(0, 2 * anchors, 2)
    others = sorted(set(range(members)) - set(everywhere))
    for rows, count in zip(group_schedule(members, counts, seed, everywhere), counts, strict=True):
        assert all(len(row) <= BLOCK and set(everywhere) < set(row) and len(set(row)) == len(row) for row in rows)
        assert sorted(member for row in rows for member in row if member in others) == sorted(others * count)


@given(st.integers(2, 4), st.integers(2, 5), st.integers(1, 3), st.text())
def test_in_full_blocks_an_anchor_s_mean_position_is_the_middle(columns, anchors, half, seed):
    members = anchors + columns * (BLOCK - anchors)
    rows = [
        row
        for blocks in group_schedule(max(members, LARGEST_WHOLE + 1), [2 * half], seed, range(anchors))
        for row in blocks
    ]
    if members > LARGEST_WHOLE:
        assert all(fmean(row.index(a) for row in rows) == (BLOCK - 1) / 2 for a in range(anchors))


async def scores_of_the_probe(bias_of_weak: Bias, bias_of_strong: Bias, **options) -> list[float]:
    """The mean reward of one trajectory, in weak company before one judge and in strong company before another."""
    found: list[float] = []
    for company, bias in ((WEAK, bias_of_weak), (STRONG, bias_of_strong)):
        rewards: list[float] = []
        for seed in range(10):
            judge = Judge(SimulatedJudge(TABLE, bias, name=company[0], seed=seed), seed=seed, **options)
            judged = await judge.score(saying("sim-probe", *company))
            rewards.append(judged.trajectories[0].reward or 0.0)
        found.append(fmean(rewards))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Bias(severity=-0.8), Bias(severity=0.8)),
        (Bias(severity=-0.5, compression=0.4), Bias(severity=0.5)),
        (Bias(curve=0.7, noise=0.2), Bias(curve=0.7, noise=0.2)),
    ],
)
async def test_one_trajectory_has_about_one_score_in_different_groups_only_with_anchors(one, other):
    weak, strong = await scores_of_the_probe(one, other)
    assert abs(weak - strong) > 0.1
    with_anchors = await scores_of_the_probe(one, other, anchors=ANCHORS)
    assert abs(with_anchors[0] - with_anchors[1]) < abs(weak - strong) / 2
    assert with_anchors == pytest.approx([worth(0.3)] * 2, abs=0.1)


def test_least_squares_find_the_line_that_a_juror_s_votes_lie_on():
    line = fit_scale([(0.3 + meant / 2, meant) for meant in (0.1, 0.5, 0.9)])
    assert line.slope == pytest.approx(0.5)
    assert line(0.55) == pytest.approx(0.5)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8))
def test_a_line_passes_through_the_means_and_its_slope_is_sane(votes):
    line = fit_scale(votes)
    assert line(fmean(given for given, _ in votes)) == pytest.approx(fmean(meant for _, meant in votes))
    assert 0.25 <= line.slope <= 4


@pytest.mark.parametrize("given_scores", [(0.9, 0.1), (0.5, 0.5), (0.5, 0.6)])
def test_a_juror_that_turns_anchors_upside_down_or_hardly_tells_them_apart_is_only_moved(given_scores):
    assert fit_scale(list(zip(given_scores, (0.1, 0.9), strict=True))).slope == 1


def test_an_answer_without_an_anchor_makes_no_score():
    answers = [Answer(0, 0, 1.0, {0: 0.5, 1: 0.7}), Answer(1, 0, 1.0, {1: 0.7, 2: 0.5})]
    standings = anchored(answers, 3, {2: 0.4})
    assert standings[0] == "no anchor was scored beside it"
    assert not isinstance(standings[1], str)
    assert standings[1].score == pytest.approx(0.6)


@pytest.mark.parametrize("score", [-0.1, 1.1, math.nan])
def test_an_anchor_s_score_is_from_0_to_1(score):
    with pytest.raises(JudgeError, match="from 0 to 1"):
        anchor("a", score)


def test_anchors_that_make_no_sense_are_refused():
    with pytest.raises(JudgeError, match="no messages"):
        Anchor(Trajectory(), 0.5)
    with pytest.raises(JudgeError, match="different scores"):
        check_anchors([anchor("a", 0.5), anchor("b", 0.5), anchor("a", 0.6)])
    with pytest.raises(JudgeError, match="too many"):
        Judge("stand-in", anchors=[anchor("a" * n, 0.5) for n in range(1, MAX_ANCHORS + 2)])
    with pytest.raises(JudgeError, match="cannot be used with"):
        Judge("stand-in", anchors=ANCHORS, mode="pairwise")


AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA"}}


def said(*parts) -> Trajectory:
    return Trajectory(
        messages_and_choices=[{"role": "user", "content": "?"}, {"role": "assistant", "content": [*parts]}]
    )


def test_those_with_unseen_content_stand_apart_and_keep_their_numbers():
    attempts = {0: said("a"), 2: said("b", AUDIO), 5: said("c")}
    found = read_attempts(attempts, (), View(), "unscored")
    assert sorted(index for member in found.seen.members for index in member.indices) == [0, 5]
    assert found.unseen == {2: "unseen content: 1 input_audio"}
    assert [member.indices for member in found.hidden.members] == [(2,)]
    flagged = read_attempts(attempts, (), View(), "flag")
    assert len(flagged.seen.members) == 3
    assert flagged.unseen == {}


def test_an_anchor_that_the_judge_does_not_see_is_an_error():
    anchor = Anchor(said("x", AUDIO), 0.5)
    with pytest.raises(JudgeError, match="an anchor has unseen content"):
        read_attempts({0: said("a")}, (anchor,), View(), "unscored")
    assert read_attempts({0: said("a")}, (anchor,), View(), "flag").fixed


def scored(file: Path, *groups: dict[str, float | None]) -> Path:
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


async def test_a_judge_takes_them_and_says_so(tmp_path: Path) -> None:
    file = scored(tmp_path / "a.jsonl.zst", {"bad": 0.1, "good": 0.9})
    judge = Judge("constant", anchors=read_anchors(file))
    judged = await judge.score(TrajectoryGroup([desk(ending="one"), desk(ending="two")]))
    assert judge.mode == "anchored"
    assert judged.judgement is not None
    assert len(judged.judgement.settings["anchors"]) == 2  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([{"one": None, "two": None}], "no attempt for human"),
        ([{"one": 0.5, "two": 0.5}], "attempts of one score only for human"),
        ([{"one": 0.5, "two": 7.0}], "from 0 to 1, not 7"),
        ([{"same": 0.5}, {"same": 0.9}], "look the same to a judge"),
    ],
)
def test_what_is_no_set_of_anchors_is_refused(tmp_path: Path, groups: list[dict[str, float | None]], said: str) -> None:
    file = scored(tmp_path / "a.jsonl.zst", *groups)
    with pytest.raises(JudgeError, match=said):
        read_anchors(file)
    with pytest.raises(JudgeError, match="no number of anchors"):
        read_anchors(file, most=1)
