"""The page of an evaluation: whole, without scripts, whatever the attempts and names hold."""

from pathlib import Path

from gavel.reports.model_page import write_model_table
from gavel.reports.model_table import Episode, ModelTable, furthest_apart, model_row, pair_wins
from gavel.scenarios.group import TrajectoryGroup
from tests.gavel.reports.html_page import HOSTILE, Page
from tests.gavel.reports.made_runs import member


def test_a_page_of_hostile_models_and_attempts_holds_no_script(tmp_path: Path) -> None:
    names = [f"{HOSTILE}1", "two"]
    groups: list[TrajectoryGroup] = []
    for _ in range(3):
        members = [member(score, hand=0.0) for score in (0.9, 0.1)]
        for name, each in zip(names, members, strict=True):
            each.metadata["model"] = name
        groups.append(TrajectoryGroup(members, metadata={"task": HOSTILE}))
    episodes = [Episode("0", n, [member(0.9, hand=0.0)], None, 1.0) for n in range(2)]
    rows = [model_row(name, episodes, groups, failed=1) for name in names]
    table = ModelTable(
        HOSTILE, rows, 2, 2, [HOSTILE], "0.20 USD", pair_wins(groups, names), tmp_path, furthest_apart(groups)
    )
    html = write_model_table(table).read_text()
    page = Page(html)
    assert page.open == []
    assert "script" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert HOSTILE in page.text
    assert "pass@2" in page.text
    assert "default-src 'none'" in html
    assert (tmp_path / "evaluation.csv").is_file()
