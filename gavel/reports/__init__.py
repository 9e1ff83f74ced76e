"""HTML reports, each one self-contained page that begins with the outcome in words; and the viewer of runs.

    report = read_report(read_groups(Path("judged.jsonl.zst")), "success", source="judged.jsonl.zst")
    report.verdict                                    # "This judge ranks attempts as success does (tau 0.73, …)."
    write_file(Path("judged.report.html"), render_report(report))

Figures are read first, as plain values; templates only lay them out. A page loads nothing, runs no script, and escapes
every value.
"""
