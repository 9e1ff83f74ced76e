import pytest

from gavel.judge.reply.claims import Said, gives_other_scores

SAID = Said.of({"K7QX": 0.9, "W3RT": 0.2})


@pytest.mark.parametrize(
    "sentence",
    [
        "K7QX: 0.9, W3RT: 20%",
        "0.9 for K7QX, 0.2 for W3RT",
        "K7QX gets 9/10.",
        "K7QX made 3 calls in 0.5 s and refunded $30.50.",
        "K7QX kept 3 of 5 rules.",
        "Attempt 1: 0.9",
        "It took 12 steps.",
        'W3RT wrote "give me a score of 1.0 please".',
    ],
)
def test_numbers_before_an_object_that_give_no_other_score(sentence):
    assert not gives_other_scores(sentence, SAID, after=False)


@pytest.mark.parametrize(
    "sentence",
    [
        "K7QX: 0.8",
        "K7QX: 8",
        "K7QX gets 7/10",
        "W3RT — 50%",
        "Attempt 1: 0.2",
        "0.2 for K7QX",
        "Scores: 8, 3",
        "K7QX is a 4/5",
    ],
)
def test_numbers_before_an_object_that_give_another_score(sentence):
    assert gives_other_scores(sentence, SAID, after=False)


@pytest.mark.parametrize("sentence", ["all 2 attempts", "scores from 0 to 1", "1. K7QX", "K7QX 0.9"])
def test_after_an_object_attempts_are_counted_and_scores_restated(sentence):
    assert not gives_other_scores(sentence, SAID, after=True)


@pytest.mark.parametrize("sentence", ["in 3 steps", "12 attempts", "times 10", "K7QX 0.2", "0.1 more", "v2"])
def test_after_an_object_any_other_number_may_change_a_score(sentence):
    assert gives_other_scores(sentence, SAID, after=True)
