from gavel.judge.audit.length_bias import characters_written
from gavel.scenarios.trajectory import History, Trajectory
from tests.judge.groups import choice


def test_only_what_the_agent_wrote_is_counted() -> None:
    items = [
        {"role": "user", "content": "a long question"},
        choice("four", calls=[("refund", '{"id": 1}')]),
        {"role": "tool", "content": "a long result", "tool_call_id": "c0"},
        {"role": "assistant", "content": None},
    ]
    other = History(messages_and_choices=[{"role": "assistant", "content": "more"}])
    trajectory = Trajectory(messages_and_choices=items, additional_histories=[other])
    assert characters_written(trajectory) == len("four") + len("refund") + len('{"id": 1}') + len("more")
