import pytest

from gavel.judge.reply.claims import Said
from gavel.judge.reply.rankings import ranks_otherwise

SAID = Said.of({"K7QX": 0.9, "W3RT": 0.2, "M4TD": 0.5})


@pytest.mark.parametrize(
    "sentence",
    [
        "K7QX is the best.",
        "W3RT is the worst overall",
        "K7QX > M4TD > W3RT",
        "Best to worst: K7QX, M4TD, W3RT",
        "worst first: W3RT, M4TD, K7QX",
        "I would pick K7QX.",
        "The best attempt is K7QX.",
        "W3RT is not the best.",
        "K7QX, W3RT and M4TD all looked first.",
        "M4TD had the best tone.",
    ],
)
def test_a_ranking_by_the_scores_is_no_contradiction(sentence):
    assert not ranks_otherwise(sentence, SAID)


@pytest.mark.parametrize(
    "sentence",
    [
        "W3RT is the best.",
        "K7QX is clearly the weakest attempt.",
        "W3RT > M4TD > K7QX",
        "K7QX < W3RT",
        "W3RT beats M4TD",
        "Ranking: W3RT, M4TD, K7QX",
        "1st W3RT, 2nd M4TD, 3rd K7QX",
        "Winner: W3RT",
        "I would choose M4TD.",
        "最好的是W3RT",
    ],
)
def test_a_ranking_against_the_scores_is_found(sentence):
    assert ranks_otherwise(sentence, SAID)
