import pytest

from gavel.reports.transcript import pretty_json, shown_text, transcribe
from gavel.scenarios.trajectory import Trajectory
from tests.gavel.reports.viewer.stored import member, sampled
from tests.judge.groups import choice


def test_a_trajectory_is_an_opening_and_rounds_of_a_turn_and_what_came_back():
    (whole,) = transcribe(member("Mended it.", 0.5))
    assert [turn.role for turn in whole.opening] == ["system", "user"]
    assert [[turn.role for turn in part] for part in whole.rounds] == [["assistant", "tool"], ["assistant"]]
    assert whole.rounds[0][0].calls[0].name == "look"
    assert whole.rounds[1][0].text == "Mended it."
    assert whole.title == ""


@pytest.mark.parametrize("count", [1, 2, 95, 96, 97, 5000])
def test_a_strip_covers_all_tokens_and_shows_the_least_likely_of_each_block(count):
    logprobs = tuple(-9.0 if at == count // 2 else -0.01 for at in range(count))
    strip = transcribe(Trajectory(messages_and_choices=[sampled("x", logprobs=logprobs)]))[0].rounds[0][0].strip
    assert strip is not None
    assert strip.tokens == count
    assert len(strip.blocks) <= 96
    assert sum(width for _, width, _ in strip.blocks) == pytest.approx(100, abs=0.2)
    assert [heat for *_, heat in strip.blocks].count(4) == 1
    assert strip.lowest == -9.0


def test_a_turn_that_ran_out_of_tokens_and_one_without_logprobs_are_marked():
    cut = transcribe(Trajectory(messages_and_choices=[sampled("x", finish_reason="length", logprobs=())]))[0].rounds[0][
        0
    ]
    assert (cut.cut, cut.strip, cut.sampled) == (True, None, True)
    plain = transcribe(Trajectory(messages_and_choices=[{"role": "assistant", "content": "x"}]))[0].rounds[0][0]
    assert (plain.sampled, plain.cut) == (False, False)


def test_contents_of_every_kind_are_text():
    assert shown_text([{"type": "text", "text": "a"}, {"type": "image_url"}, 3]) == "a\n[image_url]\n3"
    assert shown_text({"a": 1}) == '{"a": 1}'
    assert pretty_json('{"a": "ü"}') == '{\n  "a": "ü"\n}'
    assert pretty_json("[" * 100_000) == "[" * 100_000
    assert pretty_json("no json") == "no json"


def test_turns_show_calls_with_their_arguments_whatever_these_are():
    trajectory = Trajectory(
        messages_and_choices=[choice(calls=[("refund", '{"id": "é", "n": 2}'), ("refund", "not json"), ("stop", "")])]
    )
    calls = transcribe(trajectory)[0].turns[0].calls
    assert tuple(map(str, calls)) == (
        'refund(id="é", n=2)',
        "refund(not json)",
        "stop()",
    )
