import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.task_drafts.writer import SAME, likeness


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Refund order 1001.", "Please refund the orders 2002"),
        ("Find all open invoices.", "find ALL open invoices"),
        ("Book a table for two at 7", "Could you book a table for 4 at 9?"),
        ("注文1001を返金してください", "注文2002を返金してください"),
        ("Верните деньги за заказ 12", "Верните деньги за заказ 99"),
        ("", ""),
    ],
)
def test_the_same_request_in_other_words_or_numbers_is_one_task(one: str, other: str):
    assert likeness(one, other) >= SAME


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Refund order 1001.", "Exchange the kettle of order 1001 for a lamp."),
        ("List the open invoices of March.", "Sum up the sales of March by region."),
        ("注文1001を返金してください", "会議を金曜日に移動してください"),
        ("Book a table for two.", "Cancel the table of Mrs Lee and tell her why."),
    ],
)
def test_different_goals_are_different_tasks(one: str, other: str):
    assert likeness(one, other) < SAME


@given(st.text(max_size=60), st.text(max_size=60))
def test_likeness_is_a_share_and_symmetric(one: str, other: str):
    assert 0 <= likeness(one, other) == likeness(other, one) <= 1
    assert likeness(one, one) == 1
