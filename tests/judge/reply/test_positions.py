"""Members that are named by position: "the second one is the best" has to agree with the scores as a label would."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gavel.judge.reply.claims import Said
from gavel.judge.reply.errors import VerdictError
from gavel.judge.reply.positions import readings
from gavel.judge.reply.verdict import read_verdict

LABELS = ["W7QX", "B3KD", "M2PA"]
SCORES = {"W7QX": 0.9, "B3KD": 0.2, "M2PA": 0.5}
EXPLANATIONS = {
    "W7QX": "Looked up the order and paid the money back.",
    "B3KD": "Paid nothing back.",
    "M2PA": "Paid half of it back.",
}

CONTRARY_AROUND = [
    ("before", "The second attempt solved the task; the first did not."),
    ("before", "The final attempt clearly comes out on top."),
    ("before", "Only the second one finished the job."),
    ("before", "Comparing them, the one in the middle did everything right and the one at the start did nothing."),
    ("before", "I find the 2nd one best and the 1st one worst."),
    ("before", "Number one is poor, number two is excellent, number three is in between."),
    ("before", "The third attempt is the only good one; the other two fail."),
    ("before", "Between these, number three takes it, number one comes in last."),
    ("before", "Ranking: second, third, first."),
    ("before", "The initial attempt is hopeless while the second attempt is flawless."),
    ("before", "Attempt one ignores the customer and fails. Attempt two succeeds."),
    ("before", "The first is worse than the second."),
    ("after", "Overall, the second one is the strongest."),
    ("after", "The first attempt is the weakest of the three."),
    ("after", "I would pick the last one."),
    ("after", "The second is better than the first."),
    ("after", "So the middle one wins."),
    ("after", "My favourite is number two."),
    ("after", "Attempt two deserves the top score."),
    ("after", "Decision: the first loses, the second wins."),
    ("after", "In short: second > third > first."),
    ("after", "The latter two are better than the former."),
    ("after", "The winner is #2."),
    ("after", "The third response is ahead of the first."),
    ("after", "All told, the second submission does the job and the first does not."),
    ("after", "Best: the second. Worst: the first."),
    ("after", "I prefer the second over the first."),
    ("after", "The first two fail; the last succeeds."),
    ("after", "2nd place: the first. 1st place: the second."),
    ("after", "To sum up, the last attempt beats the first one."),
    ("after", "Clearly, the third is the winner here."),
]
CONTRARY_EXPLANATIONS = [
    ("W7QX", "Worse than the second attempt."),
    ("B3KD", "The best of the three, resolves everything."),
    ("M2PA", "Beats the first one on every count."),
    ("W7QX", "Did not solve the task at all."),
    ("B3KD", "Fully solves the task, no errors; full marks."),
    ("W7QX", "This one is behind both of the others."),
    ("B3KD", "Clearly stronger than the first."),
    ("W7QX", "The refund was never issued, so this gets almost no credit."),
    ("B3KD", "I'd score this near the top."),
    ("W7QX", "Should be ranked last."),
    ("B3KD", "Nothing to complain about here; exactly what was asked."),
    ("W7QX", "The agent lied to the customer and lost the order. A disaster from start to end."),
    ("M2PA", "Not as bad as the first."),
    ("W7QX", "The second one does this much better."),
    ("B3KD", "Leaves the other two far behind."),
    ("W7QX", "Wrong order, wrong amount, wrong customer. Nothing works."),
    ("B3KD", "Perfect execution from start to finish."),
    ("M2PA", "On a par with the first one."),
    ("W7QX", "Poor. It refunds the wrong order and never says so."),
    ("B3KD", "Excellent: checks the policy, refunds, confirms."),
    ("W7QX", "Complete failure to help."),
    ("B3KD", "Handled flawlessly."),
    ("W7QX", "Ignores the request entirely; I give it close to zero."),
    ("B3KD", "Deserves close to full marks."),
    ("M2PA", "The weakest of all."),
]
CONTRARY_FIELDS = [
    ("ranking", ["second", "third", "first"]),
    ("winner", 2),
    ("best", "the second attempt"),
    ("summary", "The second attempt is the only one that works."),
    ("worst", 1),
    ("verdict", "2 > 3 > 1"),
    ("decision", "second"),
    ("comment", "The last attempt should win."),
    ("reasoning", "First: bad. Second: excellent. Third: fair."),
    ("ranking", "second, third, first"),
    ("best_attempt", "second"),
    ("winner", "third"),
    ("notes", "The first attempt fails, the second succeeds."),
]

HONEST_AROUND = [
    ("before", "The first attempt solved the task; the second did not."),
    ("before", "Only the first one finished the job."),
    ("before", "I find the 1st one best and the 2nd one worst."),
    ("before", "Number one is excellent, number two is poor, number three is in between."),
    ("before", "All three begin alike. The first goes on to pay, the second stops, the third pays half."),
    ("before", "I read all attempts. What follows is the first and only verdict."),
    ("before", "The first attempt is the only good one; the other two fail."),
    ("before", "Between these, number one takes it, number two comes in last."),
    ("before", "Ranking: first, third, second."),
    ("before", "The first attempt is flawless while the second attempt is hopeless."),
    ("before", "Attempt two ignores the customer and fails. Attempt one succeeds."),
    ("before", "I read the first one twice because its tool calls are long. Scores follow."),
    ("before", "In the first attempt the order is looked up and paid; in the second nothing is; in the third, half."),
    ("after", "Overall, the first one is the strongest."),
    ("after", "The second attempt is the weakest of the three."),
    ("after", "I would pick the first one."),
    ("after", "Decision: the second loses, the first wins."),
    ("after", "In short: first > third > second."),
    ("after", "The last one falls between the two others."),
    ("after", "The first response is ahead of the third."),
    ("after", "Best: the first. Worst: the second."),
    ("after", "The first one stands out."),
]
HONEST_EXPLANATIONS = [
    ("W7QX", "Better than the second attempt."),
    ("M2PA", "Beats the second one, but not the first."),
    ("B3KD", "Its first call failed and the second one never came."),
    ("W7QX", "The first lookup failed, the second one worked."),
    ("W7QX", "First it looked up the order, second it paid the money back; the last message is polite."),
    ("M2PA", "Only the second of the two items was refunded."),
    ("B3KD", "The second refund was refused, the first was never asked for."),
    ("W7QX", "The customer's second wish, a voucher, was met at the first try."),
    ("M2PA", "On the second turn it apologised; it paid half, which is why it is in the middle."),
    ("W7QX", "It answered the last question first. All is well."),
    ("B3KD", "Third message repeats the first one and nothing is done."),
    ("W7QX", "The best price was found in the second call."),
    ("B3KD", "It promised the first one free, but that was not true."),
    ("M2PA", "Weaker than the first because the fee was not returned."),
    ("W7QX", "Wrong order id at first, corrected in the second call."),
    ("B3KD", "The first order was fine but the user asked about the second one."),
    ("W7QX", "Nothing was refunded at first; in the end all was."),
    ("B3KD", "Solves the task only on paper: no money was moved."),
    ("M2PA", "Half right, half wrong."),
    ("W7QX", "Not a single fault."),
    ("B3KD", "Fails the user, though it is the shortest of the three."),
    ("W7QX", "The refund was never in doubt; the agent did everything."),
    ("B3KD", "The first one does this much better."),
    ("W7QX", "Leaves the other two far behind."),
    ("W7QX", "Handled flawlessly."),
    ("B3KD", "Complete failure to help."),
    ("B3KD", "The weakest of all."),
    ("M2PA", "Better than the second one, worse than the first."),
    ("W7QX", "Tried twice; the first attempt at a refund failed, the second one went through."),
    ("W7QX", "Its second answer is clearer than the first, and both are correct."),
    ("M2PA", "The first half is excellent, the second half is poor."),
    ("B3KD", "After the first error it gives up; the last message is an apology."),
    ("W7QX", "One of two items came late, but number two on the list was refunded at once."),
    ("M2PA", "Neither the best nor the worst: half the money, in the end."),
]
HONEST_FIELDS = [
    ("summary", "The first attempt is the only one that works."),
    ("winner", 1),
    ("best", "the first attempt"),
    ("worst", 2),
    ("verdict", "1 > 3 > 2"),
    ("ranking", ["first", "third", "second"]),
    ("comment", "The first attempt should win."),
    ("reasoning", "First: excellent. Second: bad. Third: fair."),
    ("ranking", "first, third, second"),
    ("best_attempt", "first"),
    ("winner", "first"),
    ("notes", "The second attempt fails, the first succeeds."),
]


def reply(labels: Sequence[str] = LABELS, texts: dict[str, str] | None = None, **fields: Any) -> str:
    told = EXPLANATIONS | (texts or {})
    entries = [{"trajectory_id": each, "explanation": told[each], "score": SCORES[each]} for each in labels]
    return json.dumps({"scores": entries, **fields})


def around(place: str, text: str, labels: Sequence[str] = LABELS) -> str:
    return f"{text}\n\n{reply(labels)}" if place == "before" else f"{reply(labels)}\n\n{text}"


def is_taken(text: str) -> bool:
    try:
        found = read_verdict(text, LABELS).scores
    except VerdictError:
        return False
    assert {label: scored.score for label, scored in found.items()} == SCORES
    return True


@pytest.mark.parametrize(("place", "text"), CONTRARY_AROUND)
def test_what_is_said_around_the_scores_of_a_position_must_agree_with_them(place: str, text: str) -> None:
    assert not is_taken(around(place, text))


@pytest.mark.parametrize(("label", "text"), CONTRARY_EXPLANATIONS)
def test_an_explanation_must_agree_with_the_scores(label: str, text: str) -> None:
    assert not is_taken(reply(texts={label: text}))


@pytest.mark.parametrize(("key", "value"), CONTRARY_FIELDS)
def test_a_field_that_names_a_position_must_agree_with_the_scores(key: str, value: Any) -> None:
    assert not is_taken(reply(**{key: value}))


@pytest.mark.parametrize(("place", "text"), HONEST_AROUND)
def test_honest_words_about_positions_are_taken(place: str, text: str) -> None:
    assert is_taken(around(place, text))


@pytest.mark.parametrize(("label", "text"), HONEST_EXPLANATIONS)
def test_a_first_call_and_a_second_wish_are_no_members(label: str, text: str) -> None:
    assert is_taken(reply(texts={label: text}))


@pytest.mark.parametrize(("key", "value"), HONEST_FIELDS)
def test_a_field_that_names_a_position_in_agreement_is_taken(key: str, value: Any) -> None:
    assert is_taken(reply(**{key: value}))


@pytest.mark.parametrize("text", ["The second one is the best.", "I find the first one the worst."])
def test_a_position_may_be_that_among_the_entries(text: str) -> None:
    best_is_listed_second = ["B3KD", "W7QX", "M2PA"]
    assert is_taken(around("before", text, best_is_listed_second))
    assert not is_taken(around("before", "The last one is the best.", best_is_listed_second))


def test_a_position_that_no_member_has_stays_as_it_is() -> None:
    said = Said.of(SCORES)
    assert list(readings("The seventh one is the best.", said)) == ["The seventh one is the best."]
    assert list(readings("The second one wins, 3rd > 1st.", said)) == ["B3KD wins, M2PA > W7QX."]


def test_every_position_of_a_long_text_is_read() -> None:
    (found,) = readings("The second one is better than the first.\n" * 2_000, Said.of(SCORES))
    assert found.count("B3KD") == found.count("W7QX") == 2_000
