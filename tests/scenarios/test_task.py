"""Tasks keep their name, whoever makes them and wherever they have been."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory

untimed = settings(deadline=None)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
hidden_states = st.dictionaries(st.text(), json_values, max_size=4)


def test_the_id_of_a_task_never_changes() -> None:
    assert Task(user="hello").id == "6083580e5818"
    assert Task(user="hello", data={"b": 1, "a": [True, None]}).id == "1607cf882e6a"


@untimed
@given(st.text(), hidden_states)
def test_the_order_of_the_data_does_not_change_the_id(user: str, data: dict) -> None:
    assert Task(user=user, data=data).id == Task(user=user, data=dict(reversed(data.items()))).id


@untimed
@given(st.lists(st.tuples(st.text(), st.dictionaries(st.text(), st.integers(), max_size=2)), max_size=6))
def test_different_tasks_have_different_ids(contents: list) -> None:
    ids = {Task(user=user, data=data).id for user, data in contents}
    assert len(ids) == len({json.dumps(content, sort_keys=True) for content in contents})


def test_a_given_id_is_kept() -> None:
    assert Task(id="mine", user="hello").id == "mine"


@untimed
@given(st.text(), hidden_states)
def test_a_task_comes_back_from_the_metadata_of_a_stored_trajectory(user: str, data: dict) -> None:
    task = Task(user=user, data=data)
    stored = Trajectory(metadata={"task": task.model_dump(mode="json")}).to_json()
    assert Task.of(Trajectory.from_json(stored).metadata) == task
