import pytest

from gavel.scenarios.library.word_math import HELD_OUT_FROM, TEMPLATES, answer_in, calculate, draw_task, scenario


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(3 + 4) * 2,500 / 7", "2500"),
        ("10 / 4", "2.5"),
        ("0.1 + 0.2", "0.3"),
        ("2 ^ 10", "1024"),
        ("7 // 2 + 7 % 2", "4"),
        ("-3 − -5", "2"),
        ("$1,000 × 2 ÷ 3", "666.6666667"),
        ("1/3", "0.3333333333"),
        ("2 ** -2", "0.25"),
    ],
)
def test_arithmetic_is_exact(expression: str, value: str):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "().__class__",
        "a := 3",
        "[1 for _ in (1,)]",
        "lambda: 1",
        "'a' * 9",
        "1 if 2 else 3",
        "True + 1",
        "1 < 2",
        "1 and 2",
        "f'{1}'",
        "9 ** 9 ** 9",
        "2 ** 0.5",
        "1e400 * 1e400",
        "~1",
        "1 << 100",
        "1j * 2",
        "",
        "2 apples",
        "1\n2",
        "\x00",
        "(" * 150,
        "1" * 201,
    ],
)
def test_what_is_no_arithmetic_is_refused_and_never_run(expression: str):
    with pytest.raises(ValueError):  # noqa: PT011 - many messages
        calculate(expression)


def test_a_division_by_zero_is_an_error():
    with pytest.raises(ZeroDivisionError):
        calculate("1 / (2 - 2)")


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("It is so.\n#### 72", "72"),
        ("#### 1,234", "1234"),
        ("#### 5\n#### 6", "6"),
        ("####7", None),
        ("The answer is 72.", None),
        ("#### 72" + " " * 300, None),
        ("#### -3.5", "-3.5"),
        ("#### seventy", None),
    ],
)
def test_the_answer_is_the_last_number_after_four_hashes_near_the_end(reply: str, answer: str | None):
    assert answer_in(reply) == answer


def test_every_template_is_drawn_and_its_numbers_can_be_read_from_its_text():
    drawn: set[str] = set()
    for number in range(300):
        task = draw_task(number)
        found = [(template, template.numbers_in(task.user)) for template in TEMPLATES]
        (template, values), *others = [(template, values) for template, values in found if values is not None]
        assert others == []
        assert template.formula.format(**values) == task.data["formula"]
        assert calculate(str(task.data["formula"])) == task.data["answer"]
        drawn.add(template.text)
    assert len(drawn) == len(TEMPLATES)


def test_no_text_is_in_both_splits():
    train = {draw_task(number).user for number in range(HELD_OUT_FROM)}
    assert not train & {task.user for task in scenario.tasks("held_out")}
