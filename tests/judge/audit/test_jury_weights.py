from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.audit.agreement import kendall_tau
from gavel.judge.audit.golden import GoldenGroup, check_golden
from gavel.judge.audit.jury_weights import golden_scores, jury_weights
from gavel.judge.judge import Judge
from tests.judge.audit.test_golden import golden, knows

groups_of_pairs = st.lists(
    st.fixed_dictionaries(
        {
            judge: st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3).map(float)), min_size=2, max_size=6)
            for judge in ("a", "b")
        }
    ),
    min_size=1,
    max_size=4,
)


def drawn(noises: dict[str, float], count: int = 200, members: int = 6) -> list[dict[str, list[tuple[float, float]]]]:
    random = Random(0)
    groups = []
    for _ in range(count):
        truth = [random.gauss() for _ in range(members)]
        groups.append({judge: [(t + noise * random.gauss(), t) for t in truth] for judge, noise in noises.items()})
    return groups


def test_weights_are_close_to_those_of_the_best_combination():
    weights = jury_weights(drawn({"good": 0.5, "poor": 2.0}, members=20))
    # With errors of these sizes the best weights of standardised scores are 1/0.25·√1.25 to 1/4·√5.
    assert weights["good"] / weights["poor"] == pytest.approx(8, rel=0.15)
    assert sum(weights.values()) == pytest.approx(2)


def test_learnt_weights_order_better_than_equal_ones():
    train, test = drawn({"good": 0.3, "poor": 1.5}), drawn({"good": 0.3, "poor": 1.5}, 100)
    weights = jury_weights(train)

    def tau(of: dict[str, float]) -> float:
        total = 0.0
        for group in test:
            scores = [sum(of[judge] * pairs[n][0] for judge, pairs in group.items()) for n in range(len(group["good"]))]
            total += kendall_tau([(s, t) for s, (_, t) in zip(scores, group["good"], strict=True)]) or 0
        return total

    assert tau(weights) > tau({"good": 1, "poor": 1}) * 1.1


@given(groups_of_pairs, st.floats(0.1, 10), st.floats(-1, 1))
def test_the_scale_and_the_order_of_scores_change_no_weight(groups, scale: float, shift: float):
    weights = jury_weights(groups)
    moved = [{j: [(scale * s + shift, v) for s, v in reversed(p)] for j, p in group.items()} for group in groups]
    distinct = all(len({round(s, 3) for s, _ in pairs}) > 1 for group in groups for pairs in group.values())
    if distinct:
        assert jury_weights(moved) == pytest.approx(weights, rel=1e-3)
    assert all(weight > 0 for weight in weights.values())
    assert sum(weights.values()) == pytest.approx(2)


def test_without_groups_there_are_no_weights():
    assert jury_weights([]) == {}


async def test_a_golden_set_tells_the_juror_that_knows_from_the_one_that_errs():
    groups: list[GoldenGroup] = [golden(f"g{n}", good=f"right {n}", fair=f"near {n}", bad=f"far {n}") for n in range(5)]
    wise, wrong = knows(groups), knows(groups, -1)
    wise.__qualname__, wrong.__qualname__ = "wise", "wrong"
    results = await check_golden(Judge([wise, wrong], orders=2), groups)
    weights = jury_weights(golden_scores(results))
    assert weights["wise"] > 20 * weights["wrong"] > 0
