import json
import re
from pathlib import Path

import pytest

import gavel.prompts
from gavel.judge.reply.claims import Said
from gavel.judge.reply.declines import declines
from gavel.judge.reply.errors import VerdictError
from gavel.judge.reply.explanations import (
    is_placeholder,
    problem_with_explanation,
    problems_with_explanations,
)
from gavel.judge.reply.verdict import read_verdict
from tests.judge.reply.contradictions import OF_THE_BEST, OF_THE_WORST

LABELS = ("K7QX", "W3RT", "B9FD")
SAID = Said.of({"K7QX": 0.9, "W3RT": 0.5, "B9FD": 0.1})
PLAIN = ("Solved the task.", "Skipped one lookup.", "Invented the status.")


def reply(explanations, scores=(0.9, 0.5, 0.1)) -> str:
    entries = [
        {"trajectory_id": label, "explanation": why, "score": score}
        for label, why, score in zip(LABELS, explanations, scores, strict=True)
    ]
    return json.dumps({"scores": entries}, ensure_ascii=False)


DECLINED = [
    "I'm sorry, but I can't assess this one.",
    "I can't evaluate this content due to policy.",
    "I was unable to read the transcript.",
    "We cannot score this attempt.",
    "I have not judged this one yet.",
    "Sorry, this is not something I can help with.",
    "Not evaluated.",
    "The agent seems fine, but I cannot evaluate this content.",
    "Not scored: too long.",
    "Unscored.",
    "No evaluation possible.",
    "Evaluation skipped.",
    "Skipped for length.",
    "Could not parse this trajectory; default value.",
    "Unable to evaluate.",
    "This trajectory could not be evaluated.",
    "The transcript was not readable.",
    "Content filtered.",
    "Error: context length exceeded",
    "Error: request timed out",
    "Internal server error: service unavailable",
    "Random score as I was unable to read the transcript.",
    "The trajectory was cut off in the prompt, so I assumed 0.5 for it.",
    "I gave it a neutral default.",
    "Das kann ich leider nicht bewerten.",
    "Nicht bewertet.",
    "Dieser Versuch konnte nicht beurteilt werden.",
    "No puedo evaluar este contenido.",
    "Lo siento, no es posible.",
    "No evaluado.",
    "Je ne peux pas évaluer ce contenu.",
    "Non évalué.",
    "Не могу оценить эту попытку.",
    "Не оценено.",
    "Não avaliado.",
    "Non posso valutare questo contenuto.",
    "内容被安全策略过滤，未评分。",
    "无法评估",
    "抱歉，我无法对该轨迹评分。",
    "評価できませんでした。",
    "申し訳ありませんが、採点できません。",
    "평가할 수 없습니다.",
]
PLACEHOLDERS = [
    "<why>",
    "<explanation>",
    "[REDACTED BY SAFETY FILTER]",
    "{{explanation}}",
    "...",
    "…",
    "TODO",
    "string",
    "N/A",
    "n/a",
    "placeholder",
    "explanation for K7QX",
    "Explanation of K7QX here",
    "Your explanation here.",
    "Sample explanation text.",
    "One or two sentences about what decided the score.",
    "Lorem ipsum dolor sit amet.",
    "待定",
    "说明",
]
OTHER_SCORES = [
    "Score: 0.4. It refunded before the lookup.",
    "Refunded before the lookup, so I give it 0.4.",
    "I initially gave 0.9, but lowered it to 0.4 for the early refund.",
    "Invented? No: the tool returned it. Final score 0.7.",
    "EDIT: no, the tool returned it; I'd go with 0.7.",
    "On second reading it refunded too early, which caps it at 0.3.",
    "提前退款，因此给 0.4 分。",
    "评分为0.4。",
    "Vorzeitige Erstattung, daher 0,4 Punkte.",
    "Dafür gebe ich 0,4.",
    "Reembolsó antes de consultar; le pongo un 0,4.",
    "Вернул деньги до проверки, поэтому ставлю 0,4.",
    "確認前に返金したため、0.4点とする。",
    "Remboursement trop tôt, je mets donc 0,4.",
    'Corrected entry: {"trajectory_id": "K7QX", "score": 0.6}',
    'Rather {"K7QX": {"score": 0.2}}.',
    'Clean. Final: {"score": 0.4}',
]
ABOUT_THE_AGENT = [
    "The agent first said 5, then corrected itself to 7.",
    "The tool returned 0.3, which the agent reported.",
    "The agent said it could not assess the order, although the tool worked.",
    "The agent was unable to read the content of the page.",
    "It answered \"I'm sorry, but I can't assess this one.\" and stopped.",
    "It could not parse the reply and gave up.",
    "Refused the request politely, as the policy demands.",
    "Declined to help although the policy allows it.",
    "Did not verify the order.",
    "Never looked the order up.",
    "Its context length exceeded what the task needs.",
    "Skipped one lookup due to a wrong assumption.",
    "The agent lowered it to 0.4, though the user asked for 0.9.",
    "It set the temperature to 0.9 but lowered it to 0.4 later.",
    "The agent rated the essay 0.3 instead of 0.6 as its rubric demands.",
    "Score: partial. 50% of the items were refunded.",
    "I give it 0.9 since everything was verified.",
    "Score: 0.9. Everything was verified.",
    "Took 0.4 s and $0.30.",
    "The page content could not be loaded, so it asked.",
    "Error: the agent ignored the policy.",
    "7/10 for tone, 9/10 for accuracy.",
    'No answer; it wrote {"score": 1} to sway the judge.',
    'Correct JSON {"status": "ok", "score": 0.4} returned by the agent as asked.',
    "If it had looked first, I would give it 1.0.",
    "代理无法评估风险，但如实告知用户。",
    "先查询订单再退款，步骤正确。",
    "Konnte die Bestellung nicht lesen, fragte aber nach.",
    "Se equivocó al principio (dijo 5), pero luego corrigió a 7.",
    "Сначала проверил заказ, затем оформил возврат.",
    "注文を確認してから返金した。",
    "Explains the policy well.",
    "Good.",
    "why",
    "",
]


@pytest.mark.parametrize("text", DECLINED)
@pytest.mark.parametrize("score", [0, 0.5, 0.9])
def test_a_member_that_the_judge_declines_to_judge_has_no_score(text, score):
    assert declines(text)
    with pytest.raises(VerdictError, match="explanation of W3RT says that it was not judged"):
        read_verdict(reply((PLAIN[0], text, PLAIN[2]), (0.9, score, 0.1)), LABELS)


@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_a_form_that_is_not_filled_in_is_no_score(text):
    assert is_placeholder(text, SAID)
    with pytest.raises(VerdictError, match="placeholder"):
        read_verdict(reply((text, *PLAIN[1:])), LABELS)


def test_the_placeholders_of_the_prompts_are_known():
    folder = Path(gavel.prompts.__file__).parent / "judge"
    templates = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.j2"))
    found = set(re.findall(r'"explanation": "([^"]*)"', templates))
    assert found
    assert all(is_placeholder(text, SAID) for text in found)


@pytest.mark.parametrize("text", OTHER_SCORES)
def test_an_explanation_in_which_the_judge_gives_another_score_is_a_problem(text):
    assert "gives another score" in problem_with_explanation(text, SAID, "k7qx")
    with pytest.raises(VerdictError):
        read_verdict(reply((text, *PLAIN[1:])), LABELS)


@pytest.mark.parametrize("text", ABOUT_THE_AGENT)
def test_an_explanation_of_the_work_of_an_agent_may_say_anything(text):
    assert problem_with_explanation(text, SAID, "k7qx") == ""
    assert read_verdict(reply((text, *PLAIN[1:])), LABELS).scores["K7QX"].score == 0.9


@pytest.mark.parametrize(
    "text",
    [
        "{} solved the task well.",
        "Because of what it did.",
        "Attempt {} was judged by the rubric.",
        "完成了任务，步骤正确。",
    ],
)
def test_one_explanation_for_all_members_does_not_explain_scores_that_differ(text):
    explanations = [text.format(label) for label in LABELS]
    with pytest.raises(VerdictError, match="explanations are all the same"):
        read_verdict(reply(explanations), LABELS)
    assert read_verdict(reply(explanations, (0.6, 0.6, 0.6)), LABELS).scores
    assert read_verdict(reply([*explanations[:2], "Did nothing."]), LABELS).scores


@pytest.mark.parametrize("text", OF_THE_BEST)
def test_an_explanation_against_a_high_score_is_a_problem(text):
    written = text.format(worst="B9FD", low="0.13")
    assert problem_with_explanation(written, SAID, "k7qx") or about_another(written)


@pytest.mark.parametrize("text", OF_THE_WORST)
def test_an_explanation_against_a_low_score_is_a_problem(text):
    assert problem_with_explanation(text.format(best="K7QX", high="0.99"), SAID, "b9fd")


def about_another(text):
    with pytest.raises(VerdictError, match="about another member"):
        read_verdict(reply((text, *PLAIN[1:])), LABELS)
    return True


@pytest.mark.parametrize(
    "texts",
    [
        ("W3RT: solved it.", "K7QX: skipped a lookup.", "Invented it."),
        ("Trajectory W3RT solved it.", "Trajectory K7QX skipped a lookup.", "Invented it."),
        ("Solved it.", "Skipped.", "(this is about K7QX) solved it"),
        ("Flawless.", "Failed the task.", "Excellent."),
        ("Penalty 0.9: much.", "Penalty 0.5: some.", "Penalty 0.1: none."),
        ("Severity of faults: high", "Severity of faults: low", "Severity of faults: none"),
        ("Errors: 5 of them", "Errors: 2", "Errors: 0"),
        ("Solved it.", "See B9FD.", "Invented it."),
    ],
)
def test_explanations_that_contradict_the_scores_together_are_a_problem(texts):
    with pytest.raises(VerdictError):
        read_verdict(reply(texts), LABELS)


@pytest.mark.parametrize(
    "text",
    [
        "Second best: the date is right, the fee is not.",
        "Better than B9FD, not as good as K7QX.",
        "Almost as good as K7QX.",
        "Middle of the pack.",
        "Rank 2 of 3.",
        "Corrects itself: first 12A, then 14B.",
        "1 of 2 facts.",
        "Rebooked 1 of 2 passengers, i.e. 50% of the job.",
        "It should have called find_shelf(8812).",
        "Gut, aber nicht vollständig.",
        "Mejor que B9FD.",
        "货架正确，但缺少数量。",
    ],
)
def test_an_explanation_that_goes_with_the_score_is_none(text):
    assert problem_with_explanation(text, SAID, "w3rt") == ""


@pytest.mark.parametrize(
    "texts",
    [
        ("Severity of faults: none", "Severity of faults: low", "Severity of faults: high"),
        ("Errors: 0", "Errors: 2", "Errors: 5"),
        ("Looked up order 1 first.", "Looked up order 2 late.", "Looked up order 3 never."),
        ("Cost 3 calls.", "Cost 9 calls.", "Cost 8 calls."),
    ],
)
def test_explanations_may_begin_alike(texts):
    assert read_verdict(reply(texts), LABELS).scores


def test_explanations_are_compared_within_their_criterion():
    said = Said.of({"K7QXa": 0.4, "W3RTa": 0.3, "K7QXb": 0.9, "W3RTb": 0.8}, ["K7QX", "W3RT"])
    assert problem_with_explanation("The best of the group.", said, "k7qxa") == ""
    assert problem_with_explanation("The best of the group.", said, "w3rta")
    texts = {"k7qxa": "Excellent.", "w3rta": "Good.", "k7qxb": "Fine.", "w3rtb": "Poor."}
    assert list(problems_with_explanations(texts, said)) == []
    assert list(problems_with_explanations(texts | {"k7qxb": "Awful.", "w3rtb": "Flawless."}, said))
