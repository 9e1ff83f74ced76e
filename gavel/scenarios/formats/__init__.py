"""Trajectory formats of other programs, with the reader and writer of a format in one file.

    reading = read_file(Path("results.jsonl"))      # or .csv, .parquet, .eval, .json.gz, a dataset's directory
    print(reading.summary)                          # reads as: verifiers results, 12 rows in 3 groups by example_id
    told = export_file(stored_groups(reading.groups), "dpo", Path("pairs.jsonl"))

Reading: `files`, `text` and `tables` turn a path into rows, a `Format` rows into attempts, `chat` their conversations
into OpenAI messages; `grouping` puts attempts at the same task together; `reading` finds the format. Writing:
`exported` has messages as typed turns and what stands beside them. Data that a format cannot hold is counted in
`Losses`.
"""
