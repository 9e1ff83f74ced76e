import pytest

from gavel.scenarios.library.twenty_questions import answer


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("Can it fly?", "Yes."),
        ("Does it live in the sea?", "No."),
        ("Is it a bird that can fly?", "I cannot answer that by yes or no."),
        ("Is it an eagle?", "No."),
        ("Is it an owl?", "Yes, it is the owl."),
        ("Is it an owl or an eagle?", "I cannot answer that by yes or no."),
        ("Hello", "I cannot answer that by yes or no."),
    ],
)
def test_questions_are_answered_by_the_facts(question: str, said: str):
    assert answer(question, "owl")[0] == said
