"""HTML reports: one self-contained page for a demo run, and one for how far a judge can be trusted.

    report = read_report(read_groups(Path("judged.jsonl.zst")), "success", source="judged.jsonl.zst")
    report.sections[0].figures[0].value               # "0.73", Kendall's tau-b with the metric `success`
    write_page(Path("judged.report.html"), render_report(report))

Figures are read first (`run_outcome`, `judge_trust`), as plain values; the pages (`demo_page`, `judge_page`) only lay
them out. A page loads nothing, runs no script, and escapes every value.
"""
