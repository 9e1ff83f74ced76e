from contextlib import closing, nullcontext

import pytest

from gavel.scenarios.library._shared import playing
from gavel.scenarios.library.email_search import EmailSearch, Mail, Question, draw_task, is_answer, scenario
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scripted_agent import Call, played_by
from gavel.scenarios.task import Task

MAILS = [
    Mail(mail_id="M1", date="2031-01-01", sender="ada@x.example", subject="Lunch", body="At noon, OR later."),
    Mail(mail_id="M2", date="2031-02-01", sender="bruno@x.example", subject="Invoice", body="Pay 120 euros for lamps."),
    Mail(mail_id="M3", date="2031-03-01", sender="bruno@x.example", subject="Invoice", body="Pay 130 euros for lamps."),
]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("lamps 130", ["M3"]),
        ("LAMPS", ["M2", "M3"]),
        ("invoice noon", ["M1", "M2", "M3"]),  # no mail has both
        ('lamps" OR "noon', ["M1", "M2", "M3"]),  # "or" is a word that M1 has
        ("body:lamps NEAR(noon)", ["M1", "M2", "M3"]),
        ("'; DROP TABLE mails; --", []),
        ("*", None),
        ("", None),
        ("lamps " * 10_000, ["M2", "M3"]),
    ],
)
def test_a_query_is_words_and_no_language(query: str, found: list[str] | None):
    with closing(EmailSearch()) as desk:
        desk.reset(Task(user="", data=Question(mails=MAILS, answer="130", source="M3", others=[]).model_dump()))
        with pytest.raises(ValueError, match="no words") if found is None else nullcontext():
            assert sorted(mail["mail_id"] for mail in desk.search(query)) == found


RIGHT = {"1250": ("1250", "1,250.00 euros", "EUR1250"), "B204": ("room B204.",), "9:15": ("at 09:15",)}
WRONG = {"1250": ("1250 or 1350", "-1250", ""), "B204": ("204",), "KL-1234": ("KL-1234 KM-1234",)}


@pytest.mark.parametrize(
    ("said", "answer", "is_right"),
    [(said, answer, kind is RIGHT) for kind in (RIGHT, WRONG) for answer, texts in kind.items() for said in texts],
)
def test_an_answer_is_one_value(said: str, answer: str, is_right: bool):
    assert is_answer(said, answer, ["1350", "B999"]) is is_right


def test_the_answer_stands_in_one_mail_alone_and_in_no_subject():
    for number in range(60):
        question = Question.model_validate(draw_task(number).data)
        words = {mail.mail_id: f" {mail.body} ".translate({44: " ", 46: " "}) for mail in question.mails}
        assert [name for name, text in words.items() if f" {question.answer} " in text] == [question.source]
        assert not any(question.answer in mail.subject + mail.sender for mail in question.mails)
        assert len({mail.mail_id for mail in question.mails}) == len(question.mails) == 48


async def test_an_answer_from_a_mail_that_was_not_read_or_another_one_fails():
    task = draw_task(0)
    question = Question.model_validate(task.data)
    other = next(mail.mail_id for mail in question.mails if mail.mail_id != question.source)

    async def success(*calls: Call) -> tuple[float, float]:
        episode = await rollout(played_by(lambda *_: playing(calls), task), scenario, task)
        return episode.metrics["success"], episode.metrics["tool_errors"]

    right = Call("answer", {"answer": question.answer, "source": question.source})
    read = Call("read", {"mail_id": question.source})
    assert await success(read, right) == (1, 0)
    assert await success(right) == (0, 0)
    assert await success(read, Call("answer", {"answer": question.answer, "source": other})) == (0, 0)
    assert await success(Call("read", {"mail_id": other}), right) == (0, 0)
    assert await success(read, Call("answer", {"answer": question.answer, "source": "M1"})) == (0, 1)
    assert await success(read, Call("answer", {"answer": f"{question.answer} " * 30, "source": other})) == (0, 1)
