from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.panel.agreement import order_agreement

FOUR = {0: 0.9, 1: 0.6, 2: 0.4, 3: 0.1}
BACK = {0: 0.1, 1: 0.4, 2: 0.6, 3: 0.9}

CASES = {
    "two orders that agree": ([FOUR, FOUR], 1.0),
    "another scale": ([FOUR, {member: score / 10 for member, score in FOUR.items()}], 1.0),
    "two opposed orders": ([FOUR, BACK], -1.0),
    "two orders of two members": ([{0: 0.9, 1: 0.1}, {0: 0.1, 1: 0.9}], -1.0),
    "three against one": ([FOUR, FOUR, FOUR, BACK], 0.0),
    "one order": ([FOUR], None),
    "no order": ([], None),
    "orders that tie all": ([dict.fromkeys(FOUR, 0.5)] * 2, None),
    "an order that ties all": ([FOUR, dict.fromkeys(FOUR, 0.5)], None),
    "blocks without common pairs": ([{0: 0.9, 1: 0.1}, {1: 0.1, 2: 0.9}], None),
    "blocks with a common pair": ([{0: 0.9, 1: 0.1}, {0: 0.7, 1: 0.3, 2: 1.0}], 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_agreement_is_the_mean_tau_between_orders(case):
    orders, expected = CASES[case]
    assert order_agreement(orders) == expected


@given(st.lists(st.dictionaries(st.integers(0, 5), st.sampled_from([0.1, 0.5, 0.6, 0.9])), max_size=5))
def test_agreement_counts_each_two_orders_and_each_two_members(orders):
    signs = [
        (scores[a] > scores[b]) - (scores[a] < scores[b])
        for pair in combinations(orders, 2)
        for a, b in combinations(range(6), 2)
        if all(a in scores and b in scores and scores[a] != scores[b] for scores in pair)
        for scores in pair
    ]
    products = [one * other for one, other in zip(signs[::2], signs[1::2], strict=True)]
    assert order_agreement(orders) == (pytest.approx(sum(products) / len(products)) if products else None)


@given(st.permutations([FOUR, BACK, FOUR, {0: 0.5, 1: 0.7}]))
def test_agreement_does_not_depend_on_the_order_of_calls(orders):
    assert order_agreement(orders) == order_agreement([FOUR, BACK, FOUR, {0: 0.5, 1: 0.7}])
