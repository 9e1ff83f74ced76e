import json

from gavel.judge.judge import Judge
from gavel.judge.panel.modes import OPPONENTS
from tests.judge.groups import by_length, saying


async def prefers_length(messages, schema):
    return json.dumps({label: score / 5 for label, score in by_length(messages).items()})


async def test_every_call_shows_two_members_and_each_pair_is_shown_both_ways():
    shown: list[tuple[float, ...]] = []

    async def judge(messages, schema):
        shown.append(tuple(by_length(messages).values()))
        return await prefers_length(messages, schema)

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


async def test_a_large_group_takes_eight_pairs_of_each_member_and_keeps_their_order():
    group = saying(*("x" * length for length in range(1, 25)))
    judged = await Judge(prefers_length, mode="pairwise", orders=1).score(group)
    rewards = [trajectory.reward or 0.0 for trajectory in judged]
    assert rewards == sorted(rewards)
    assert judged.judgement.calls == 24 * OPPONENTS // 2


async def test_members_that_lost_calls_cut_off_from_the_most_are_unscored():
    async def judge(messages, schema):
        """Fails on pairs that are not of one part."""
        if not any(set(by_length(messages).values()) <= part for part in ({0.1, 0.2, 0.3}, {0.4, 0.5})):
            raise ValueError("no idea")
        return await prefers_length(messages, schema)

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
        scores = json.loads(await prefers_length(messages, schema))
        return json.dumps({label: None if score < 0.03 else score for label, score in scores.items()})

    judged = await Judge(judge, mode="pairwise").score(saying("a", "bb", "ccc"))
    declined, *others = judged
    assert declined.reward is None
    assert "declined" in declined.judgement.reason
    assert others[0].reward < others[1].reward
