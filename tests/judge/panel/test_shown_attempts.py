import pytest

from gavel.judge.errors import JudgeError
from gavel.judge.panel.anchors import Anchor
from gavel.judge.panel.shown_attempts import read_attempts
from gavel.judge.prompt.shown_content import View
from gavel.scenarios.trajectory import Trajectory

AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA"}}


def said(*parts) -> Trajectory:
    return Trajectory(
        messages_and_choices=[{"role": "user", "content": "?"}, {"role": "assistant", "content": [*parts]}]
    )


def test_those_with_unseen_content_stand_apart_and_keep_their_numbers():
    attempts = {0: said("a"), 2: said("b", AUDIO), 5: said("c")}
    found = read_attempts(attempts, (), View(), "unscored")
    assert sorted(index for member in found.seen.members for index in member.indices) == [0, 5]
    assert found.unseen == {2: "unseen content: 1 input_audio"}
    assert [member.indices for member in found.hidden.members] == [(2,)]
    flagged = read_attempts(attempts, (), View(), "flag")
    assert len(flagged.seen.members) == 3
    assert flagged.unseen == {}


def test_an_anchor_that_the_judge_does_not_see_is_an_error():
    anchor = Anchor(said("x", AUDIO), 0.5)
    with pytest.raises(JudgeError, match="an anchor has unseen content"):
        read_attempts({0: said("a")}, (anchor,), View(), "unscored")
    assert read_attempts({0: said("a")}, (anchor,), View(), "flag").fixed
