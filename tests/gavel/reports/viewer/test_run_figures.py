from gavel.reports.viewer.run_figures import run_figures
from tests.gavel.reports.viewer.stored import run_directory


def test_a_run_has_a_row_for_each_step_and_curves(tmp_path):
    found = run_figures(run_directory(tmp_path))
    assert [(row.step, row.held_out) for row in found.steps] == [(2, 0.5), (1, None), (0, 0.25)]
    assert found.columns == ["reward", "loss"]
    assert found.steps[1].figures == {"reward": 0.5, "loss": -0.1}
    assert found.steps[1].left_out == [(2, "groups whose members all have the same score")]
    assert [title for title, _ in found.curves] == ["Success on held-out tasks", "Mean reward of a step"]
    assert [len(chart.dots) for _, chart in found.curves] == [2, 2]


def test_a_run_without_metrics_has_none(tmp_path):
    found = run_figures(tmp_path)
    assert (found.columns, found.steps, found.curves) == ([], [], [])
