import pytest

from gavel.judge.reply.claims import Said
from gavel.judge.reply.surroundings import problem_after, problem_before, problem_within
from tests.judge.reply.contradictions import ABOUT_MEMBERS, AFTER, BEFORE
from tests.judge.reply.malformed import CORRECTIONS, SCALES

SAID = Said.of({"K7QX": 0.9, "W3RT": 0.2, "M4TD": 0.5})
WORDS = {"a": "K7QX", "b": "W3RT", "sa": 0.9, "sb": 0.2, "new": 0.31, "worst": "W3RT", "best": "K7QX"}
PLAIN = [text for text in CORRECTIONS if not any(mark in text for mark in ("{again}", "{cut}", "```", "<think"))]

HARMLESS_AFTER = [
    "Trajectory 1 is best.",
    "K7QX is the best.",
    "K7QX > M4TD > W3RT",
    "K7QX 0.9, W3RT 0.2, M4TD 0.5",
    "- K7QX: 90%\n- W3RT: 2/10\n- M4TD: 0.50",
    "| K7QX | 0.9 |\n| W3RT | 0.2 |",
    "I gave 0.9 to K7QX and 0.2 to W3RT.",
    "All 3 trajectories are scored from 0 (worst) to 1 (best).",
    "I hope this helps!",
    "W3RT never looked the order up.",
    "Espero que esto ayude.",
    "希望这有帮助！",
    "}",
    "So {K7QX} is best.",
]
HARMLESS_BEFORE = [
    "K7QX made 3 calls, W3RT made 12 and refunded $30 of $60.50 on 2024-05-12.",
    "K7QX passed 3/5 checks; W3RT 50% of the steps.",
    "I scored all 3 trajectories from 0 (worst) to 1 (best):",
    "Scores (0 = worst, 1 = best):",
    "K7QX gets 0.9 since it looked first; W3RT: 0.2.",
    "Lower scores reflect worse attempts.",
    "| Trajectory | Calls |\n|---|---|\n| K7QX | 3 |",
    "Trajectory 2 took 4 steps.",
]


@pytest.mark.parametrize("text", HARMLESS_AFTER)
def test_closing_words_are_harmless(text):
    assert problem_after(text, SAID) == ""


@pytest.mark.parametrize("text", PLAIN)
def test_what_takes_a_score_back_is_a_problem(text):
    assert problem_after(text.format(**WORDS), SAID)


@pytest.mark.parametrize("text", HARMLESS_BEFORE)
def test_numbers_that_are_no_scores_are_harmless_before_an_object(text):
    assert problem_before(f"{text}\n", SAID) == ""


@pytest.mark.parametrize("text", SCALES)
def test_another_scale_or_another_meaning_before_an_object_is_a_problem(text):
    assert problem_before(text.format(**WORDS) + "\n", SAID)


def test_a_text_beside_the_scores_may_neither_rescale_nor_correct_them():
    assert problem_within("K7QX looked first, in 3 calls.", SAID) == ""
    assert problem_within("Scores are out of 10.", SAID)
    assert problem_within("I mixed up K7QX and W3RT.", SAID)


def test_a_problem_shows_the_sentence():
    assert '"So K7QX should be 0.2."' in problem_after("So K7QX should be 0.2.", SAID)


@pytest.mark.parametrize(
    "text",
    [
        "Let me know if you want me to fix the K7QX score.",
        "Let me know if I should use real scores instead of these placeholders.",
        "I hope this example helps!",
        "Feel free to adjust the scores as you see fit.",
        "Ich hoffe, dieses Beispiel hilft.",
        "Espero que sea de ayuda, aunque las cifras son inventadas.",
        "希望这个示例对您有帮助。",
        "以上为随机分数。",
    ],
)
def test_polite_words_do_not_hide_that_scores_are_not_meant(text):
    assert problem_after(text, SAID)


@pytest.mark.parametrize("text", ["No further comments.", "### Rationale\n\n- K7QX: did verify the order."])
def test_a_rationale_and_plain_closing_words_are_harmless(text):
    assert problem_after(text, SAID) == ""


@pytest.mark.parametrize("text", ["Voici les scores :", "Les scores :", "Voici l'évaluation demandée :"])
def test_french_introductions_are_harmless(text):
    assert problem_before(f"{text}\n", SAID) == ""


WORST_LAST = {"best": "K7QX", "worst": "W3RT", "worst_first": "W3RT, M4TD, K7QX"}


@pytest.mark.parametrize("text", ABOUT_MEMBERS)
def test_a_ranking_against_the_scores_is_a_problem_before_and_after_the_object(text):
    assert problem_before(text.format(**WORST_LAST) + "\n\n", SAID)
    assert problem_after(text.format(**WORST_LAST), SAID)


@pytest.mark.parametrize("text", BEFORE)
def test_an_introduction_of_what_is_no_answer_is_a_problem(text):
    assert problem_before(text.format(**WORST_LAST) + "\n", SAID)


@pytest.mark.parametrize("text", AFTER)
def test_a_closing_that_is_not_understood_is_a_problem(text):
    assert problem_after(text.format(**WORST_LAST), SAID)


@pytest.mark.parametrize(
    "text",
    [
        "Begründung: K7QX hat alles geprüft, W3RT nichts.",
        "Kommentar: K7QX ist am besten, W3RT am schlechtesten.",
        "Die Bewertung berücksichtigt Vollständigkeit und Richtigkeit.",
        "Justificación: K7QX verificó todo; W3RT inventó datos.",
        "Justification : K7QX est le meilleur, W3RT le moins bon.",
        "Justificativa: K7QX aplicou a isenção; W3RT não consultou nada.",
        "Motivazione: K7QX ha verificato tutto, W3RT non ha verificato nulla.",
        "Пояснение: K7QX лучший, W3RT худший.",
        "Оценки выставлены относительно друг друга.",
        "评分说明：K7QX 最好，M4TD 次之，W3RT 最差。",
        "補足:K7QX が最も良く、W3RT が最も悪い。",
        "이유: K7QX은 모두 확인했고 W3RT는 아무것도 확인하지 않았습니다.",
        "Toelichting: K7QX is de beste, W3RT de slechtste.",
        "Reasoning: K7QX verified its claims, M4TD did so partly, W3RT did not.",
        "Rationale:\n1. K7QX – complete and verified.\n2. W3RT – guess.",
        "K7QX is the strongest and W3RT the weakest of the three.",
        "K7QX wins thanks to its verified answer.",
        "Saludos",
    ],
)
def test_reasons_in_any_language_are_harmless_after_the_object(text):
    assert problem_after(text, SAID) == ""


@pytest.mark.parametrize(
    "text",
    [
        "Segue a avaliação das tentativas:",
        "Hier sind meine Bewertungen der Versuche:",
        "四つの軌跡の評価は次のとおりです。",
        "以下是四条轨迹的评分：",
        "Вот моя оценка попыток:",
        "Ecco i punteggi richiesti:",
        "K7QX > M4TD > W3RT",
        "Only K7QX calls the tool; that is what the rubric rewards most.",
        "Scoring notes: the task's own maximum is 20 points.",
        "K7QX fails nowhere; M4TD has one gap. W3RT fails.",
    ],
)
def test_introductions_and_reasons_are_harmless_before_the_object(text):
    assert problem_before(f"{text}\n\n", SAID) == ""
