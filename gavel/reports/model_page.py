"""The report of an evaluation of models as one self-contained HTML page, with the same figures as CSV and JSON.

Trajectories and names are untrusted: the template escapes every value, contains no script, and its content security
policy allows none.
"""

import csv
import io
from pathlib import Path

from gavel.reports.demo_page import duration
from gavel.reports.model_table import ModelRow, ModelTable, as_json, cost_text, csv_rows, outcome
from gavel.reports.page import render_page, write_page


def write_model_table(table: ModelTable) -> Path:
    """Writes report.html, evaluation.csv and evaluation.json; returns the page. Raises `GavelError`."""
    folder, text = table.directory, io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(csv_rows(table))
    write_page(folder / "evaluation.csv", text.getvalue())
    write_page(folder / "evaluation.json", as_json(table) + "\n")
    write_page(folder / "report.html", render_model_table(table))
    return folder / "report.html"


def render_model_table(table: ModelTable) -> str:
    """The page's HTML."""
    ks = sorted({k for row in table.rows for k in row.pass_at if table.samples > 1})
    measures = list(dict.fromkeys(name for row in table.rows for name in row.measures))
    return render_page(
        "model_page.html.j2",
        table=table,
        outcome=outcome(table),
        ks=ks,
        rows=[(row, *_cells(row, ks)) for row in table.rows],
        measures=measures,
        measured=[[f"{row.measures[n]:.3g}" if n in row.measures else "–" for n in measures] for row in table.rows],
        pairs=[(one, other, each.text(), each.tasks) for (one, other), each in table.pairs.items()],
        unscored=[(row.name, reason, count) for row in table.rows for reason, count in row.unscored.items()],
    )


def _cells(row: ModelRow, ks: list[int]) -> tuple[list[str], str, str]:
    passes = [row.pass_at[k].text() if k in row.pass_at else "–" for k in ks]
    return passes, cost_text(row.cost_usd), duration(row.seconds / row.episodes) if row.episodes else "–"
