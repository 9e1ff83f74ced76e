"""Explanations that praise the worst member and blame the best have been exchanged; all others are as they are."""

import json
from itertools import permutations

import pytest

from gavel.judge.reply.claims import Said
from gavel.judge.reply.errors import VerdictError
from gavel.judge.reply.tone import told_the_other_way_round, tone
from gavel.judge.reply.verdict import read_verdict

LABELS = ["W7QX", "B3KD", "M2PA"]
SCORES = {"W7QX": 0.9, "B3KD": 0.2, "M2PA": 0.5}
PRAISED = [
    "It found the right order and resolved the request in a polite way.",
    "All steps are correct, no errors, and the customer is told clearly what happens.",
    "Sehr höflich, die Bestellung wurde richtig gefunden.",
    "El reembolso es correcto y el tono amable.",
    "La commande est correcte et la réponse claire.",
]
BLAMED = [
    "It ignored the policy and refunded the wrong order.",
    "The agent invented a tracking number, and the answer is misleading.",
    "It did not verify anything properly and forgot the second item.",
    "Die falsche Bestellung wurde erstattet, die Frage ignoriert.",
    "Pedido equivocado, y además inventó una respuesta.",
]
MIXED = [
    "The first lookup failed, then it found the right order and resolved the request.",
    "Polite and correct, but it forgot the second item.",
    "It paid half of the money back.",
    "Wrong order id at first.",
    "",
]


def is_taken(texts: dict[str, str]) -> bool:
    entries = [{"trajectory_id": label, "explanation": texts[label], "score": SCORES[label]} for label in LABELS]
    try:
        read_verdict(json.dumps({"scores": entries}), LABELS)
    except VerdictError:
        return False
    return True


@pytest.mark.parametrize("praised", PRAISED)
@pytest.mark.parametrize("blamed", BLAMED)
def test_only_exchanged_explanations_are_refused(praised: str, blamed: str) -> None:
    between = "It paid half of the money back."
    assert not is_taken({"W7QX": blamed, "B3KD": praised, "M2PA": between})
    assert is_taken({"W7QX": praised, "B3KD": blamed, "M2PA": between})


@pytest.mark.parametrize("mixed", MIXED)
def test_an_explanation_that_holds_both_or_neither_says_nothing_of_the_order(mixed: str) -> None:
    said = Said.of(SCORES)
    for other in (PRAISED[0], BLAMED[0]):
        for best, worst in permutations((mixed, other)):
            assert not told_the_other_way_round({"w7qx": best, "b3kd": worst, "m2pa": ""}, said)


def test_members_of_nearly_one_score_may_be_told_of_either_way() -> None:
    said = Said.of({"W7QX": 0.55, "B3KD": 0.45})
    assert not told_the_other_way_round({"w7qx": BLAMED[0], "b3kd": PRAISED[0]}, said)


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("correct and polite", (2, 0)),
        ("not correct", (0, 1)),
        ("no errors", (1, 0)),
        ("It didn’t get the wrong order", (1, 0)),
        ("not polite, but correct", (1, 1)),
        ("never failed, never ignored anyone", (2, 0)),
    ],
)
def test_a_word_after_a_negation_counts_as_its_opposite(text: str, counted: tuple[int, int]) -> None:
    assert tone(text) == counted
