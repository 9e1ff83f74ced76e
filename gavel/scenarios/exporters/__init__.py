"""Writers of trajectories in the formats of other programs: one file per format, the counterpart of `readers`.

    from gavel.scenarios.exporters.export import export_file

    told = export_file(groups, "atif", Path("attempts.jsonl"))
    print(told.summary, *told.notes)        # what was written, and what the format could not hold, with its number

`turns` turns messages into typed turns, `attempts` gathers what stands beside them; a format writes both. Whatever has
no place of its own in a format is kept in its free fields, under `gavel`, or is counted in `Losses`.
"""
