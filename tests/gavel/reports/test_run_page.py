"""The page of a run: what it tells, and that hostile trajectories stay text."""

from pathlib import Path

import pytest

from gavel.base.errors import GavelError
from gavel.reports.run_page import render_run, write_run_report
from tests.gavel.reports.html_page import Page
from tests.gavel.reports.made_runs import made_run


def test_the_page_of_a_run_that_goes_on_tells_its_figures(tmp_path: Path) -> None:
    page = Page(render_run(made_run(tmp_path / "desk" / "one")))
    assert "After step 3" in page.text
    assert page.text.index("It learned: held-out success 0.50 → 0.90") < page.text.index("After step 3")
    assert "6 groups whose members all have the same score" in page.text
    assert "0.7500 USD" in page.text
    for title in ("Held-out", "Loss", "Judge and truth", "Judge's scores by step", "flag: contentless"):
        assert title in page.text
    assert "Entropy" not in page.text  # this run has none


def test_nothing_of_a_trajectory_becomes_markup(tmp_path: Path) -> None:
    html = render_run(made_run(tmp_path / "desk" / "one"))
    page = Page(html)
    assert "<script>alert(1)</script>" in page.text
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert not {name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")}
    assert "default-src 'none'" in html


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GavelError, match=r"is no run"):
        write_run_report(tmp_path)
