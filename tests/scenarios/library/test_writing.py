from gavel.scenarios.library.writing import FORMS, READERS, scenario


def test_held_out_orders_are_new_pairs_of_known_forms_and_readers():
    train, held_out = scenario.tasks("train"), scenario.tasks("held_out")
    assert len(train) + len(held_out) == len(FORMS) * len(READERS)
    for key in ("form", "reader"):
        assert {task.data[key] for task in held_out} <= {task.data[key] for task in train}
    assert scenario.success is None
