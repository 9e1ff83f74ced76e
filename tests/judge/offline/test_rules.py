import pytest

from gavel.judge.offline.rules import Before, EndsWithMessage, Facts, OnlyOneOf, When, facts_of, read_rules, score_rules
from gavel.judge.prompt.canonical_group import Conversation, canonicalize
from tests.judge.groups import desk

RUBRIC = """The clerk at the returns desk:
- calls get_order and get_policy before refund, exchange or deny
- calls refund when days <= window and (not opened or opened_ok)
- calls deny when not (days <= window and (not opened or opened_ok)).
- calls only one of refund, exchange, deny
- ends with a message that tells the customer what was done
- is polite
"""


def facts(*tools: str, ending: str | None = "Done.", results: dict | None = None):
    attempt = desk(*tools, ending=ending)
    for item in attempt.messages_and_choices:
        if isinstance(item, dict) and results and item["role"] == "tool":
            item["content"] = results.get(item["content"], item["content"])
    group = canonicalize({0: attempt})
    return facts_of([Conversation(group.shared + group.members[0].conversations[0].events)])


def kept(rule: str, attempt) -> bool:
    [read] = read_rules(f"- {rule}")
    return read.kept(attempt)


def test_every_form_is_read_and_other_lines_are_not():
    assert [type(rule) for rule in read_rules(RUBRIC)] == [Before, When, When, OnlyOneOf, EndsWithMessage]


@pytest.mark.parametrize(
    ("text", "needed", "actions"),
    [
        ("calls a before x", ("a",), ("x",)),
        ("calls a, b and c before x, y or z.", ("a", "b", "c"), ("x", "y", "z")),
        ("calls `a` and `b`, before `x`", ("a", "b"), ("x",)),
    ],
)
def test_lists_of_tools_are_read_as_they_are_written(text, needed, actions):
    [rule] = read_rules(f"- {text}")
    assert isinstance(rule, Before)
    assert (rule.needed, rule.actions) == (needed, actions)


@pytest.mark.parametrize(
    "line",
    [
        "- calls refund when the customer is angry",
        "- calls refund when __import__('os').system('true')",
        "- calls refund when days + 1 < window",
        "- calls refund when order.days < 3",
        "- calls refund when 9**9**9**9 > days",
        "- calls refund when range(10**12)|list == days",
        "- calls refund when 'a' * 10**12 == item",
        "- calls refund when ''.__class__.__mro__ == days",
        "- calls refund when days['x'] == 1",
        "- calls refund when days in window",
        "- calls refund when self == 'a'",
        "- calls refund when days is defined",
        "- calls refund when days }}{{ window",
        "- calls refund when days %}{% set x = 1 %}{{ days",
        "- calls refund when " + "(" * 5000 + "days" + ")" * 5000,
        "- calls refund when " + "not " * 5000 + "days",
        "- calls refund when " + " and ".join(["days"] * 5000),
        "- calls refund when days == " + "9" * 5000,
        "- calls the right tool before anything else happens",
        "calls a before b",
        "- tells the truth",
    ],
)
def test_a_line_of_another_form_is_no_rule(line):
    assert read_rules(line) == []


def test_what_is_needed_must_come_before_the_first_action():
    rule = "calls get_order and get_policy before refund or deny"
    assert kept(rule, facts("get_order", "get_policy", "refund"))
    assert not kept(rule, facts("get_order", "refund", "get_policy"))
    assert not kept(rule, facts("get_order", "refund"))
    assert not kept(rule, facts("get_order", "get_policy"))


def test_an_action_is_right_exactly_when_its_condition_holds():
    looked = ("get_order", "get_policy")
    assert kept("calls refund when days <= window", facts(*looked, "refund"))
    assert not kept("calls refund when days <= window", facts(*looked, "deny"))
    assert not kept("calls refund when days > window", facts(*looked, "refund"))
    assert kept("calls refund when days > window", facts(*looked, "deny"))


def test_a_condition_on_what_the_agent_never_learned_is_not_kept_either_way():
    assert not kept("calls refund when days <= window", facts("get_order", "refund"))
    assert not kept("calls refund when days > window", facts("get_order"))
    assert not kept("calls refund when days <= item", facts("get_order", "refund"))
    assert not kept("calls refund when days > 99 and opened_ok", facts("get_order"))


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("days < 20 < window", True),
        ("window < 20 < days", False),
        ("result == 1 and range == 2 and loop == 3", True),
        ("result != 1 or not range == 2", False),
        ("opened == true and opened == True and gone == None", True),
        ("tags == tags and item == 'lamp'", True),
        ("item", True),
        ("gone", False),
    ],
)
def test_a_condition_compares_the_values_that_tools_returned(condition, holds):
    values = {"result": 1, "range": 2, "loop": 3, "opened": True, "gone": None, "tags": ["a"]}
    known = {"days": 10, "window": 30, "item": "lamp", **values}
    [rule] = read_rules(f"- calls refund when {condition}")
    assert rule.kept(Facts(calls=("refund",), errors=0, known=known, ends_with_message=True)) == holds


def test_a_call_that_failed_was_not_made():
    failing = {'{"done": "refunded"}': '{"error": "no such order"}'}
    attempt = facts("get_order", "refund", results=failing)
    assert attempt.calls == ("get_order",)
    assert attempt.errors == 1
    assert not kept("calls only one of refund, deny", attempt)


def test_one_call_is_one_call():
    rule = "calls only one of refund, exchange, deny"
    assert kept(rule, facts("get_order", "refund"))
    assert not kept(rule, facts("refund", "deny"))
    assert not kept(rule, facts("refund", "refund"))
    assert not kept(rule, facts("get_order"))


def test_the_end_is_a_message_that_says_something():
    assert kept("ends with a message", facts("refund"))
    assert not kept("ends with a message", facts("refund", ending=None))
    assert not kept("ends with a message", facts("refund", ending="  "))


@pytest.mark.parametrize(
    ("tools", "share"),
    [
        (("get_order", "get_policy", "refund"), 1.0),
        (("get_order", "get_policy", "deny"), 0.5),
        (("refund",), 0.25),
        (("get_order", "get_policy"), 0.125),
    ],
)
def test_the_share_weighs_deeds_twice_looking_first_once_and_manners_half(tools, share):
    assert score_rules(read_rules(RUBRIC), facts(*tools))[0] == share


def test_rules_that_were_broken_are_named():
    _, broken = score_rules(read_rules(RUBRIC), facts("refund", ending=None))
    assert "ends with a message that tells the customer what was done" in broken
