"""Readers of files that other programs wrote: one file per format, each a few lines from its rows to trajectories.

    from gavel.scenarios.readers.reading import read_file

    reading = read_file(Path("results.jsonl"))      # or .csv, .parquet, .eval, .json.gz, a dataset's directory
    print(reading.summary)                          # reads as: verifiers results, 12 rows in 3 groups by example_id
    judged = [await judge.score(group) for group in reading.groups]

`files`, `text`, `tables` and `archive` turn a path into rows; a `Format` turns rows into attempts, whose conversations
`chat` turns into OpenAI messages; `grouping` puts attempts at the same task together; `reading` finds the format.
"""
