import json
import re
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.offline.facts import CallMade, Facts, UserText, facts_of, value_of
from gavel.judge.offline.rules import nearest_form, read_rubric, score_rules
from gavel.judge.prompt.canonical_group import Conversation, canonicalize
from tests.judge.groups import desk


def facts(*tools: str, ending: str | None = "Done."):
    group = canonicalize({0: desk(*tools, ending=ending)})
    return facts_of([Conversation(group.shared + group.members[0].conversations[0].events)])


def finding(rule: str, attempt: Facts) -> tuple[bool, str]:
    reading = read_rubric(f"- {rule}", reference=attempt.reference)
    assert reading.unread == ()
    share, told = score_rules(reading.rules, attempt)
    assert share in (0, 1)
    return share == 1, told


def kept(rule: str, attempt: Facts) -> bool:
    return finding(rule, attempt)[0]


@pytest.mark.parametrize(
    ("rubric", "rules", "unread"),
    [
        ("- calls a before b\n- Answers correctly", ["calls a before b"], ["Answers correctly"]),
        ("Calls b. It never:\n- calls a.", ["Calls b"], ["It never:", "calls a"]),
        ("- it must not:\n  - calls a\n- calls b", [], ["it must not:", "calls a", "calls b"]),
        ("- calls a\n  before b\n", ["calls a before b"], []),
        ("Calls a before b. Ends with a message. Be kind!", ["Calls a before b", "Ends with a message"], ["Be kind!"]),
        ('- calls a. Says "Yes. No." to the customer.', ["calls a", 'Says "Yes. No." to the customer'], []),
        ("- says “Canberra” or „180“ to the user.", ['says "Canberra" or "180" to the user'], []),
        ("- ends with a message that is true", [], ["ends with a message that is true"]),
        ("- calls a; is polite", [], ["calls a; is polite"]),
        ("- says the reference", [], ["says the reference"]),
        # without its Markdown
        ("- **calls refund**\n- __calls refund__.\n- [ ] calls refund", ["calls refund"] * 3, []),
        ("- [x] *calls* `refund`.", ["calls `refund`"], []),
        ('- says "**4**"', ['says "**4**"'], []),
        ("- ~~calls refund~~", [], ["~~calls refund~~"]),
        (
            "- calls `a_b` when `days` < 3\n- calls b when `days` is small",
            ["calls `a_b` when `days` < 3"],
            ["calls b when `days` is small"],
        ),
    ],
)
def test_each_item_and_sentence_is_read_or_told_as_not_read(rubric: str, rules: list[str], unread: list[str]):
    reading = read_rubric(rubric)
    assert ([rule.text for rule in reading.rules], list(reading.unread)) == (rules, unread)


@pytest.mark.parametrize(
    ("reference", "said", "right"),
    [
        ("12 rooms.", "It has 12 rooms.", True),
        ("12 rooms.", "It has 112 rooms.", False),
        ('["Paris", "City of Paris"]', "It is the City of Paris.", True),
        ('["Paris", "Lutetia"]', "It is Rome.", False),
        ('{"answer": "Paris"}', "Paris.", True),
        ("4.0", "The sum is 4.", True),
    ],
)
def test_a_reference_is_a_rule_that_is_read_where_it_is_asked_for(reference: str, said: str, right: bool):
    """Each answer of a structured one may be said."""
    assert read_rubric("- calls a", reference=reference).shortfall == "1 of 2 rules checked; not read: the reference"
    for rule in ("says the reference to the user", "says the reference"):
        assert kept(rule, Facts(said=said, reference=reference)) == right


NOTHING = [None, False, 0, "", [], {}, {"count": 0, "rows": []}, {"found": False, "at": {}}]
SOMETHING = [[{"id": 1, "opened": False}], [{"results": ["a"], "errors": []}], [[], {"id": 1}]]
UNREAD = [
    {"status": "ok", "rows": []},
    {"rows": [], "message": "none"},
    {"found": False, "message": "none"},
    {"id": 1, "tags": []},
    [[]],
    [{"status": "ok", "results": []}],
    [{"ok": True, "data": {"hits": [], "took": 3}}],
]


@pytest.mark.parametrize("result", NOTHING + SOMETHING + UNREAD)
def test_a_result_is_nothing_however_it_is_wrapped_or_something_or_is_not_read(result: object):
    calls = [("look", {}, result), ("refund", {}, "ok")]
    found = [finding("calls refund when look finds something", made(*calls[:count])) for count in (1, 2)]
    assert [is_kept for is_kept, _ in found] == [result in NOTHING, result in SOMETHING]
    unread = ["look told whether it found something in a form that is not read" in told for _, told in found]
    assert unread == [result in UNREAD] * 2
    assert kept("calls refund when rows", made(("look", {}, {"status": "ok", "rows": []})))


@pytest.mark.parametrize(
    "rule",
    [
        "does not call Refund",
        "does not call anything",
        "calls refund only after looks",
        'calls refund when looks says "30 days"',
        'says "no" when looks finds something',
        "calls everything at most once",
    ],
)
def test_a_rule_names_tools_that_there_are(rule: str):
    declared = frozenset({"look", "refund"})
    reading = read_rubric(f"- {rule}\n- calls look", declared=declared, called=frozenset({"Refund", "looks"}))
    assert [each.text for each in reading.rules] == ["calls look"]
    assert len(reading.unknown) == 1
    assert "look and refund" in reading.shortfall


def test_without_declared_tools_names_that_no_attempt_calls_are_told():
    for rest, unknown in ((", and apologises", ("apologises",)), ("", ())):
        reading = read_rubric(f"- calls look before refund{rest}", called=frozenset({"look", "refund"}))
        assert (len(reading.rules), reading.unknown) == (1, unknown)
        assert "apologises" in reading.shortfall if unknown else reading.shortfall == ""


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("says Canberra or 180", 'says "Canberra" or "180"'),
        ("does not say 'never'", 'does not say "never"'),
        ("says New York, Rome and 30 days to the user", 'says "New York", "Rome" and "30 days" to the user'),
        ("the reference", "says the reference"),
        ("must call refund before ship", "calls refund before ship"),
        ('It says "4" when days <= 30', 'says "4" when days <= 30'),
        ('"calls look_up before refund"', "calls look_up before refund"),
        ('says "Done" (weight: 3)', 'says "Done" (weight 3)'),
        ("The agent must never call refund if days > 30", "calls refund only when not (days > 30)"),
        ("never calls refund unless days <= 30", "calls refund only when days <= 30"),
        ("does not call refund before look_up", "calls refund only after look_up"),
        ('calls refund when a = 3 and b = "x=y"', 'calls refund when a == 3 and b == "x=y"'),
        ("calls refund after look_up", "calls refund only after look_up"),
        ("calls look_up, then refund", "calls look_up before refund"),
        ("calls refund unless days > 30", "calls refund when not (days > 30)"),
        ('calls look_up and says "done and calls"', 'calls look_up; says "done and calls"'),
        ('calls refund when "days since" <= 30', "calls refund when days_since <= 30"),
        ("calls refund when amount > $100", "calls refund when amount > 100"),
    ],
)
def test_the_nearest_form_of_a_line_can_be_read_itself(line: str, form: str):
    assert nearest_form(line) == form
    assert read_rubric(f"- {form}", reference="x" if "reference" in form else None).unread == ()
    assert said_by(line) <= said_by(form)


WITHOUT_FORM = [
    *("lends nothing when a loan is overdue", "looks before it acts", "calls refund politely", "says nothing"),
    *("says 30 twice", "says 3 times", 'says "no" at most twice', "calls refund at most twice"),
    *("calls refund (twice)", 'starts with "Dear"', 'ends with "Best regards"', "does not end with a question"),
    *('ends with a message without "sorry"', "calls refund when paid == total", "calls refund or apologizes"),
    *("says that the parcel arrives on Friday", "calls look_up, then refund, then ship", "calls a; is polite"),
    *('calls refund when days > 30 and says "ok"', 'does not say "no" when days > 30', "calls a, then is quiet"),
    *('never calls a if the request says "b"', 'never calls refund and says "done"', 'says "Done" at most once'),
    *("calls only look_up and refund", 'calls a when n < 0.125 or m == "1.000" or n > 1.0005'),
]


def said_by(statement: str) -> set[str]:
    """Its names, words of phrases, numbers and comparisons."""
    grammar = r"(?i:the|agent|it|must|calls?|says?|does|not|never|if|unless|when|only|before|after|then|and)"
    return {each for each in re.findall(r"[^\W_]+|[<>=!]=?", statement) if not re.fullmatch(grammar, each)}


def test_null_is_no_text_and_a_list_without_a_conjunction_means_and():
    assert not kept('says "30 days", "free"', Facts(said="It is free."))
    assert kept('says «30 days», "free"', Facts(said="Free for 30 days."))
    assert not kept("calls a, b", made(("a", {}, "")))
    for returned in (None, "null"):
        attempt = made(("look", {}, {"returned_at": returned}), ("refund", {}, "ok"))
        assert kept("calls refund when returned_at == null", attempt) is (returned is None)


def test_a_number_that_may_be_of_thousands_is_asked_about():
    """In German `1.000` is a thousand."""
    assert read_rubric("- calls look only when total >= 1.000").rules == ()
    forms = nearest_form("calls look only when total >= 1.000 and n < 12.500").split("` or `- ")
    assert forms == [
        f"calls look only when total >= {a} and n < {b}" for a, b in (("1000", 12500), ("1.0000", "12.5000"))
    ]
    assert all(read_rubric(f"- {form}").unread == () for form in forms)


def test_a_nearest_form_says_it_whole_with_values_in_json_and_tools_that_there_are():
    assert {line: nearest_form(line) for line in WITHOUT_FORM} == dict.fromkeys(WITHOUT_FORM, "")
    assert nearest_form("calls refund when amount > 1,000 EUR") == "calls refund when amount > 1000"
    assert nearest_form('calls refund when status is "open"') == 'calls refund when status == "open"'
    assert nearest_form("must call refund", {"refund"}) == "calls refund"
    assert nearest_form("must call Refund", {"refund"}) == ""


@pytest.mark.parametrize(
    ("text", "calls", "is_kept"),
    [
        ("calls a, b and c before x, y or z.", "abcy", True),
        ("calls `a` and `b`, before `x`", "axb", False),
        ("calls a or b before x", "bx", True),
        ("calls a and b", "b", False),
        ("does not call a or b", "cb", False),
        ("calls x only after a or b", "bx", True),
    ],
)
def test_lists_of_tools_are_read_as_they_are_written(text: str, calls: str, is_kept: bool):
    assert kept(text, Facts(made=tuple(CallMade(name, {}, None, turn) for turn, name in enumerate(calls)))) is is_kept


@pytest.mark.parametrize(
    "line",
    [
        "- calls refund when the customer is angry",
        "- calls refund when __import__('os').system('true')",
        "- calls refund when days + 1 < window",
        "- calls refund when status == delivered",
        "- calls refund when 9**9**9**9 > days",
        "- calls refund when ''.__class__.__mro__ == days",
        "- calls refund when days }}{{ window",
        "- calls refund when " + "not " * 5000 + "days",
        "- calls the right tool before anything else happens",
        "- calls a only after lunch is served",
        "- calls a with great care from the request",
        "- calls a thing at most once",
        "- is not told ''",
    ],
)
def test_a_line_of_another_form_is_no_rule(line):
    assert read_rubric(line).rules == ()
    assert len(read_rubric(line).unread) >= 1


def test_a_condition_on_what_the_agent_never_learned_is_not_kept_either_way():
    assert not kept("calls refund when days <= window", facts("get_order", "refund"))
    assert not kept("calls refund when days > window", facts("get_order"))
    assert not kept("calls refund when days <= item", facts("get_order", "refund"))
    assert not kept("calls refund when days > 99 and opened_ok", facts("get_order"))


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("days < 20 < window", True),
        ("result == 1 and range == 2 and loop == 3", True),
        ("opened == true and opened == True and gone == None", True),
        ("item == 'lamp' and Gone == none", True),
        ("gone", False),
    ],
)
def test_a_condition_compares_the_values_that_tools_returned(condition, holds):
    values = {"result": 1, "range": 2, "loop": 3, "opened": True, "gone": None, "tags": ["a"]}
    known = {"days": 10, "window": 30, "item": "lamp", **values}
    attempt = Facts((CallMade("look", {}, known, 1), CallMade("refund", {}, None, 2)))
    assert kept(f"calls refund when {condition}", attempt) == holds
    assert kept(f"calls refund only when {condition}", attempt) == holds


@pytest.mark.parametrize(
    ("rule", "known", "told"),
    [
        ("calls refund when days <= 30", {"days": True}, "days is true, which cannot be compared"),
        ("calls refund when days <= 30", {"days": "12"}, 'days is "12", which cannot be compared'),
        ("calls refund when not opened", {"opened": None}, "opened is null, which cannot be compared"),
        ('calls refund when day > "2024-05-01"', {"day": "06/01/2024"}, "which cannot be compared"),
        ('calls refund when rank > "low"', {"rank": "high"}, "which cannot be compared"),
        ('calls refund when s == "open"', {"s": "ok", "order": {"s": "open"}}, "not read: name look.s or look.order.s"),
        ('calls refund when s == "ok"', {"s": "ok", "orders": [{"s": "open"}, {}]}, "not read: name look.s"),
    ],
)
def test_values_of_different_kinds_are_not_compared(rule: str, known: dict, told: str):
    attempt = Facts((CallMade("look", {}, known, 1), CallMade("refund", {}, None, 2)))
    is_kept, explanation = finding(rule, attempt)
    assert not is_kept
    assert told in explanation


@pytest.mark.parametrize(
    "rule",
    [
        "calls refund when days <= 30",
        "calls refund only when look.order.days <= 30",
        'calls refund when look says "early"',
        "calls refund when look finds something",
        "calls refund with days from look",
    ],
)
def test_the_result_of_a_call_with_its_own_arguments_counts(rule: str):
    """Also where the key stands deeper in it than in another's result."""
    early = ("look", {"id": "1"}, {"order": {"days": 12, "term": "early"}})
    late = ("look", {"id": "2"}, {} if "finds" in rule else {"order": {"days": 45, "term": "late"}})
    others = (early, late, ("policy", {}, {"days": 99}))
    assert kept(rule, made(*others, ("refund", {"id": "1", "days": 12}, "ok")))
    assert not kept(rule, made(*others, ("refund", {"id": "2", "days": 12}, "ok")))


@pytest.mark.parametrize(
    "rule",
    [
        "calls refund when days <= 30",
        "calls refund only when days <= 30",
        'calls refund when look says "10"',
        "calls refund when look finds something",
        'calls refund when the request says "please"',
    ],
)
def test_what_decides_is_known_before_the_call(rule: str):
    look, act, please = CallMade("look", {}, {"days": 10}, 1), CallMade("refund", {}, "", 2), UserText("Please.", 0)
    assert kept(rule, Facts((look, act), heard=(please,)))
    assert not kept(rule, Facts((act, replace(look, turn=3)), heard=(replace(please, turn=2),)))
    assert not kept(rule, Facts((look, replace(act, turn=1)), heard=(replace(please, turn=1),)))
    assert not kept(rule, Facts((replace(act, turn=0), look, act), heard=(please,)))
    elsewhere = Facts((act, replace(look, turn=3, conversation=1)), heard=(replace(please, turn=3, conversation=1),))
    assert kept(rule, elsewhere)


@pytest.mark.parametrize(
    ("rule", "said", "is_kept"),
    [
        ('is told "The chest is open"', "You are in the hall.\nThe chest is OPEN: well done.", True),
        ('is told "The chest is open"', "The chest is locked.", False),
        ('is told "You win" or "It is a draw".', "It is a draw.", True),
        ('is not told "There is a wall", "Say one step"', "There is a wall. Open ways: north.", False),
        ('does not say "as an AI"', "It is on its way.", True),
        ('says "can\'t"', "I can’t.", True),
        ('says "possible"', "That is impossible.", False),
        ('says "180"', "1,180 and 1800 and 180.5 and -180", False),
        ('says "180"', "It is 180°.", True),
        ('says "4"', "It is 4%, or 4 %, or 4\\%.", False),
        ('says "refundable"', "A non‑refundable room.", False),
        ('does not say "refundable"', "A non-refundable room.", False),
        ('says "non-refundable" and "Lisbon"', "Non-refundable - Lisbon - two nights.", True),
        ('says "4"', "2+2=4.", True),
        ('says "1299"', "It is €1,299.00.", True),
        ('says "3.1"', "It needs 3.1.0, or 1.3.1.", False),
        ('says "12.50 EUR"', "It is 12.5 EUR.", True),
        ('says "4.5"', "It is 4.50.", True),
        ('says "16GB" and "30 km/h"', "It has 16 GB and goes 30km/h.", True),
        ('says "3"', "The 3rd in 3D.", False),
        ('says "4"', "It is -4 C, or 3-4, or A-4, or 2024-05-4.", False),
        ('says "5 days"', "Delivery takes 3-5 days.", True),
        ('says "5 days"', "Delivery takes 15 days, or A-5 days.", False),
        ('says "-4"', "It is 3-4, or A-4.", False),
        ('says "1002"', "Orders 1001,1002.", True),
        ('says "12.5"', "Das sind 12,50 EUR.", True),
        ('says "12"', "It is 12\u202f000 EUR, or 12\u00a0000 EUR, or 12'000 EUR.", False),
        ('says "12000" and "3400"', "It is 12\u202f000 EUR, or 12 000 EUR; then 3'400.", True),
        ('says "1/2 cup"', "Take 1 1/2 cup.", False),
        ('says "gpt-4"', "It is gpt-4.1, or gpt-4o, or gpt-4-turbo.", False),
        ('says "A"', "The answer is B, a mammal.", False),
        ('says "A"', "The answer is A.", True),
        ('says "jane@x.com"', "Write to mary.jane@x.com or jane@x.com.au.", False),
        ('says "jane@x.com"', "Write to <JANE@x.com>.", True),
        ('says "http://a.b/c"', "See http://a.b/c/d, or http://a.b/cd.", False),
        ('says "180"', "価格は180円", True),
        ('says "30 days"', "That was within **30** days.", True),
        ('says "http://a.b/c"', "See [there](http://a.b/c).", True),
        ('says "4"', "It is [5](http://a.b/4), see ![there](http://a.b/4).", False),
        ('says "4"', "It is 5.<!-- It is 4. -->\n\n<!-- It is\n\n4. -->", False),
        ('says "17:00" and "9:00"', "We are open 9:00–17:00.", True),
        ('says "17:00"', "We are open 9:00-17:00.", True),
        ('says "$30" and "$20"', "It is $20-30.", True),
        ('says "20%" and "10%"', "It is 10%-20%.", True),
        ('says "20 m"', "It is 20 m²: 4 m × 5 m.", False),
        ('does not say "2025"', "It was 2024-2025.", False),
        ('says "2025"', "It is order 2024-2025.", False),
        ('says "2024"', "It was on 2024–05–06.", False),
        ('says "2"', "1. She has 5.\n2. She eats 3.\n3. So 4 are left.", False),
        ('says "4"', "1. She has 5.\n2. So 4 are left.", True),
        ('says "1945"', "1945. The war ended.", True),
        ('says "C"', "It is C++, or C#.", False),
        ('says "C"', "It is C. Not C++.", True),
        ('says "C++"', "It is C++11, not C.", True),
        ('says "Notepad"', "It is Notepad++.", False),
        ('says "a lamp"', "It is ~~a lamp~~ a tent.", False),
        ('says "order_id" and "a * b"', "The order_id is a * b.", True),
        ('says "a lamp" and "a tent"', "A tent, a lamp.", True),
    ],
)
def test_what_the_agent_says_and_what_a_world_says_to_its_words_are_rules(rule: str, said: str, is_kept: bool):
    is_heard = rule.startswith("is ")
    assert kept(rule, Facts(heard=(UserText(said),)) if is_heard else facts("refund", ending=said)) is is_kept


def made(*calls: tuple[str, dict, object], request: str = "I am Ada. A room for 2 people from night 3 to night 5."):
    return Facts(tuple(CallMade(*call, turn) for turn, call in enumerate(calls)), heard=(UserText(request, -1),))


IDS = ("id,days\n1001,100\n1,450", ["1001", 100, "1", "1,450"], [1001100, 1001450, 45])


@pytest.mark.parametrize(
    ("result", "told", "not_told"),
    [
        IDS,
        ("orders 1001,1002 please", [1001, "1002"], [10011002]),
        ("a price of 1,180 EUR", [1180, 1180.0, "1,180.00"], [180, 1]),
        ("-4", ["-4", -4.0], [4]),
        ("Set it to -4 C", [-4], [4]),
        ("nights 3-4 in A-100 from 2024-05-01", ["3-4", "A-100", "2024-05-01"], [-4, -100, 100, -1]),
        ({"price": 12.5, "off": "4%", "tiny": 1e-05}, ["12.50", 4, "0.00001"], [12, 5]),
        ("within 30-day windows", [30], [-30, 3]),
        ("16GB for 4k EUR", ["16 GB", "16GB", "4k"], [16, 4]),
        ("Total: 1.045,50 EUR for a 3-night stay", ["1045.50", 1045.5, 3], [1, 45.5, -1045.5]),
        ("Mail <ann.lee@x.com>, soon.", ["ann.lee@x.com", "ANN.LEE@X.COM"], ["lee@x.com", "ann.lee@x.co"]),
        ("See https://x.com/a/1?b=2.", ["https://x.com/a/1?b=2", "x.com"], ["https://x.com/a", "https://x.com/a/1"]),
        ("Delete /home/ann/old and C:\\tmp\\a.", ["/home/ann/old", "C:\\tmp\\a"], ["/home/ann", "ann/old", "C:\\tmp"]),
    ],
)
def test_an_argument_is_told_by_each_spelling_of_it_and_by_nothing_else(result, told: list, not_told: list):
    value = value_of(result) if isinstance(result, str) else result
    for argument in told + not_told:
        is_told = argument in told
        assert kept("calls b with x from a", made(("a", {}, value), ("b", {"x": argument}, "ok"))) is is_told
        if isinstance(result, str):
            asked = made(("b", {"x": argument}, "ok"), request=result)
            assert kept("calls b with x from the request", asked) is is_told


@pytest.mark.parametrize("names", ["origin and destination", "destination and origin"])
def test_arguments_may_stand_in_the_request_in_any_order(names: str):
    asked = "To Bad Honnef from Rome."
    rule = f"calls search with {names} from the request"
    right, wrong = {"origin": "Rome", "destination": "Bad Honnef"}, {"origin": "Rome", "destination": "Honnef Bad"}
    assert kept(rule, made(("search", right, "ok"), request=asked))
    assert not kept(rule, made(("search", wrong, "ok"), request=asked))


def spellings(number: Decimal) -> list[str]:
    plain = f"{number:f}"
    exact = f"{number:,f}"
    more = [f"{text}{'' if '.' in text else '.'}00" for text in (plain, exact)]
    return [plain, exact, *more, plain.replace("-", "−"), plain.replace("-", "-$")]


numbers = st.decimals(-99999, 99999, places=2) | st.integers(-(10**7), 10**7).map(Decimal)
around = st.sampled_from(["It is {}.", "{}", "({}), or", "Set it to {} C", "**{}** EUR", "a: {}; b", "x={}"])


@given(numbers, numbers, st.data(), around)
def test_every_spelling_of_a_number_tells_it_and_no_other_number_does(one: Decimal, other: Decimal, data, around: str):
    said, asked = data.draw(st.sampled_from(spellings(one))), data.draw(st.sampled_from(spellings(other)))
    text = around.format(said)
    assert kept(f'says "{said}"', Facts(said=around.format(data.draw(st.sampled_from(spellings(one))))))
    assert kept(f'says "{asked}"', Facts(said=text)) == (one == other)
    assert kept("calls b with x from a", made(("a", {}, text), ("b", {"x": asked}, "ok"))) == (one == other)
    assert kept("calls b with x from a", made(("a", {}, text), ("b", {"x": float(one)}, "ok")))


ROOMS = [{"number": "101", "price": 50}, {"number": "204", "price": 80}]
FOUND = ("find_rooms", {"people": 2, "first_night": 3, "last_night": 5}, ROOMS)


def booked(room: str = "101", first: int = 3, last: int = 5):
    return ("book_room", {"room": room, "guest": "Ada", "first_night": first, "last_night": last}, {"booking": "B1"})


def test_a_result_that_is_text_decides_and_so_what_is_said():
    looked = ("look_up", {}, "bought 45 days ago")
    rule = 'calls refund only when look_up says "10 days"; says "45" when look_up says "45 days"'
    assert kept(rule, replace(made(looked), said="45 days are too many."))
    assert not kept(rule, replace(made(looked), said="No."))
    assert not kept(rule, replace(made(looked, ("refund", {}, "")), said="45"))
    assert not kept(rule, made(("refund", {}, "")))
    assert not kept('calls refund when look_up says "4"', made(("look_up", {}, {"share": "1/4"}), ("refund", {}, "")))


@pytest.mark.parametrize(
    ("request_text", "due"),
    [("Please cancel it.", True), ("CANCEL!", True), ("I cancelled nothing.", False), ("A room.", False), ("", False)],
)
def test_what_the_user_asked_for_is_done_and_nothing_else(request_text: str, due: bool):
    rule = 'calls cancel when the request says "cancel" or "call off"'
    assert kept(rule, made(("cancel", {}, "ok"), request=request_text)) == due
    assert kept(rule, made(request=request_text)) != due


def test_the_last_search_says_whether_there_is_something_to_take():
    rule = "calls book_room when find_rooms finds something"
    nothing = ("find_rooms", FOUND[1], [])
    assert kept(rule, made())
    assert kept(rule, made(nothing))
    assert kept(rule, made(nothing, FOUND, booked()))
    assert not kept(rule, made(FOUND))
    assert not kept(rule, made(FOUND, nothing, booked()))
    assert not kept(rule, made(booked()))


def test_arguments_are_taken_from_what_a_tool_said_before():
    anything = "calls book_room only with room from find_rooms"
    first = "calls book_room with room from the first of find_rooms"
    assert kept(anything, made())
    assert not kept(first, made())
    assert kept(anything, made(FOUND, booked("204")))
    assert kept(first, made(FOUND, booked("101")))
    assert not kept(first, made(FOUND, booked("204")))
    assert not kept(anything, made(FOUND, booked("305")))
    assert not kept(anything, made(booked("101"), FOUND))
    assert not kept(anything, made(FOUND, ("find_rooms", FOUND[1], ROOMS[:1]), booked("204")))
    assert not kept(anything, made(FOUND, ("book_room", {}, "ok")))


def looked(name: str, order: str, days: int):
    return ("look_up", {"name": name}, {"order": order, "days": days, "note": f"order {order}."})


@pytest.mark.parametrize("first", [("Ann", "Bob"), ("Bob", "Ann")])
@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        ("calls refund with order from look_up", "1001", "1003"),
        ("calls refund with order and days from look_up", "1001", "1002"),
        ("calls refund only when days <= 30", "1001", "1002"),
    ],
)
def test_of_several_results_that_counts_which_tells_the_arguments(first: tuple[str, ...], rule: str, right: str, wrong):
    calls = {"Ann": looked("Ann", "1001", 5), "Bob": looked("Bob", "1002", 50)}
    for order in (right, wrong):
        given = {"order": order} | ({"days": 5} if "order and days" in rule else {})
        tried = made(*map(calls.__getitem__, first), ("refund", given, "ok"))
        assert kept(rule, tried) is (order == right)


@pytest.mark.parametrize(
    ("result", "is_read"),
    [
        ({"results": ROOMS}, True),
        ({"count": 2, "rows": ROOMS}, True),
        ({"data": {"rooms": ["101", "204"]}}, True),
        ({"result": json.dumps(ROOMS)}, True),
        ("101 red\n204 blue", False),
        ({"rooms": ROOMS, "ads": ROOMS}, False),
        ({"101": {"number": "101"}, "204": {"number": "204"}}, False),
    ],
)
def test_the_first_is_that_of_a_list_or_of_an_object_s_one_list(result: object, is_read: bool):
    rule = "calls book_room with room from the first of find_rooms"
    found = [finding(rule, made(("find_rooms", {}, result), booked(room))) for room in ("101", "204")]
    assert [is_kept for is_kept, _ in found] == [is_read, False]
    assert is_read or all("find_rooms told room in a form that is not read" in told for _, told in found)


@pytest.mark.parametrize(
    ("result", "is_kept"),
    [
        ({"order": {"id": "1", "days": 10}}, True),
        ({"ok": True, "data": {"order": {"days": 45}}}, False),
        ([{"days": 10}], True),
        ('```json\n{"days": 10}\n```', True),
        ({"content": [{"type": "text", "text": '{"days": 45}'}], "isError": False}, False),
        ([{"days": 10}, {"days": 45}], None),
        ({"days": 10, "policy": {"days": 45}}, None),
        ("Order found: days 10", None),
        ('{"days": 10, "scans": ["…', None),
    ],
)
def test_a_key_within_a_result_is_known_or_told_as_not_read(result: object, is_kept: bool | None):
    rule, told_so = "calls refund only when days <= 30", "get_order told days in a form that is not read"
    found, told = finding(rule, made(("get_order", {}, result), ("refund", {}, "done")))
    assert (found, told_so in told) == (bool(is_kept), is_kept is None)
    for depth in (50, 900):
        nested = json.loads("[" * depth + '{"days": 10}' + "]" * depth)
        found, told = finding(rule, made(("get_order", {}, nested), ("refund", {}, "done")))
        assert found or "not read" in told
