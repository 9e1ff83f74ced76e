import pytest

from gavel.judge.offline.facts import CallMade, Facts, facts_of
from gavel.judge.offline.rules import (
    ArgumentsFrom,
    AtMostOnce,
    Before,
    EndsWithMessage,
    OnlyAfter,
    OnlyOneOf,
    When,
    WhenAsked,
    WhenFound,
    read_rules,
    score_rules,
)
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
    ("rule", "said", "is_kept"),
    [
        ('is told "The chest is open"', "You are in the hall.\nThe chest is OPEN: well done.", True),
        ('is told "The chest is open"', "The chest is locked.", False),
        ('is told "You win" or "It is a draw".', "It is a draw.", True),
        ('is not told "There is a wall", "Say one step"', "Open ways: north.", True),
        ('is not told "There is a wall", "Say one step"', "There is a wall. Open ways: north.", False),
    ],
)
def test_what_a_world_says_to_the_agent_s_words_is_a_rule(rule: str, said: str, is_kept: bool):
    [read] = read_rules(f"- {rule}")
    attempt = Facts(calls=(), errors=0, known={}, ends_with_message=False, request=said)
    assert read.kept(attempt) is is_kept
    assert score_rules([read], attempt)[0] == is_kept


def test_what_the_agent_says_itself_is_not_told_to_it():
    attempt = facts("refund", ending="You have found the exit.")
    assert attempt.ends_with_message
    assert not kept('is told "You have found the exit"', attempt)


@pytest.mark.parametrize(
    ("rule", "said", "is_kept"),
    [
        ('says "refund" or "30 days" to the customer.', "That was within 30 DAYS.", True),
        ('says "refund", "money" or "30 days"', "No.", False),
        ('does not say "as an AI"', "As an AI, I cannot.", False),
        ('does not say "as an AI"', "It is on its way.", True),
    ],
)
def test_what_the_agent_says_is_a_rule(rule: str, said: str, is_kept: bool):
    assert kept(rule, facts("refund", ending=said)) is is_kept


def test_what_the_user_or_a_tool_says_is_not_said_by_the_agent():
    asked = Facts(calls=(), errors=0, known={"note": "refund"}, ends_with_message=False, request="A refund, please.")
    assert not kept('says "refund"', asked)


def test_a_line_that_only_resembles_a_rule_is_none():
    assert read_rules("- is told that the chest is open\n- is told\n- is not told ''") == []
    assert read_rules("- says what is true\n- says\n- says ''\n- it says \"yes\"") == []


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


def made(*calls: tuple[str, dict, object], request: str = "I am Ada. A room for 2 people from night 3 to night 5."):
    each = tuple(CallMade(*call) for call in calls)
    return Facts(tuple(call.name for call in each), 0, {}, ends_with_message=True, made=each, request=request)


def holds(rule: str, attempt: Facts) -> bool:
    [read] = read_rules(f"- {rule}.")
    return read.kept(attempt)


ROOMS = [{"number": "101", "price": 50}, {"number": "204", "price": 80}]
FOUND = ("find_rooms", {"people": 2, "first_night": 3, "last_night": 5}, ROOMS)


def booked(room: str = "101", first: int = 3, last: int = 5):
    return ("book_room", {"room": room, "guest": "Ada", "first_night": first, "last_night": last}, {"booking": "B1"})


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("calls a and b only after c", OnlyAfter),
        ('calls a and b when the request says "x", "y" or "z z"', WhenAsked),
        ("calls a when b finds something", WhenFound),
        ("calls a with x and y from b", ArgumentsFrom),
        ("calls a and b with x from the first of c", ArgumentsFrom),
        ("calls a with x, y and z from the request", ArgumentsFrom),
        ("calls a and b at most once", AtMostOnce),
    ],
)
def test_every_form_of_what_was_asked_and_found_is_read(line: str, kind: type):
    assert [type(rule) for rule in read_rules(f"- {line}.")] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        "calls a only after lunch is served",
        'calls a when the request says "?"',
        "calls a when the request says x",
        "calls a and b when c finds something",
        "calls a with great care from the request",
        "calls a with x from the first of many results",
        "calls a thing at most once",
    ],
)
def test_a_line_that_only_resembles_a_form_is_no_rule(line: str):
    assert read_rules(f"- {line}") == []


def test_what_must_come_first_is_asked_only_of_those_who_act():
    rule = "calls book_room only after find_rooms"
    assert holds(rule, made())
    assert holds(rule, made(FOUND, booked()))
    assert not holds(rule, made(booked(), FOUND))


@pytest.mark.parametrize(
    ("request_text", "due"),
    [("Please cancel it.", True), ("CANCEL!", True), ("I cancelled nothing.", False), ("A room.", False), ("", False)],
)
def test_what_the_user_asked_for_is_done_and_nothing_else(request_text: str, due: bool):
    rule = 'calls cancel when the request says "cancel" or "call off"'
    assert holds(rule, made(("cancel", {}, "ok"), request=request_text)) == due
    assert holds(rule, made(request=request_text)) != due


def test_the_last_search_says_whether_there_is_something_to_take():
    rule = "calls book_room when find_rooms finds something"
    nothing = ("find_rooms", {}, [])
    assert holds(rule, made())
    assert holds(rule, made(nothing))
    assert holds(rule, made(nothing, FOUND, booked()))
    assert not holds(rule, made(FOUND))
    assert not holds(rule, made(FOUND, nothing, booked()))
    assert not holds(rule, made(booked()))


def test_arguments_are_taken_from_what_a_tool_said_before():
    anything = "calls book_room with room from find_rooms"
    first = "calls book_room with room from the first of find_rooms"
    assert holds(anything, made())
    assert holds(anything, made(FOUND, booked("204")))
    assert holds(first, made(FOUND, booked("101")))
    assert not holds(first, made(FOUND, booked("204")))
    assert not holds(anything, made(FOUND, booked("305")))
    assert not holds(anything, made(booked("101"), FOUND))
    assert not holds(anything, made(FOUND, ("find_rooms", {}, ROOMS[:1]), booked("204")))
    assert not holds(anything, made(FOUND, ("book_room", {}, "ok")))


def test_arguments_are_taken_from_the_users_words_in_their_order():
    rule = "calls find_rooms with people, first_night and last_night from the request"
    assert holds(rule, made(FOUND))
    for people, first, last in ((2, 5, 3), (3, 3, 5), (2, 3, 3), (2, 3, 50)):
        wrong = {"people": people, "first_night": first, "last_night": last}
        assert not holds(rule, made(("find_rooms", wrong, [])))


def test_what_may_be_done_once_is_done_once_or_not_at_all():
    rule = "calls book_room and cancel at most once"
    assert holds(rule, made(FOUND, FOUND, booked(), ("cancel", {}, "ok")))
    assert not holds(rule, made(FOUND, booked(), booked("204")))
