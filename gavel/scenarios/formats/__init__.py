"""Trajectory formats of other programs, with the reader and writer of a format in one file.

    reading = read_file(Path("results.jsonl"))      # or .csv, .parquet, .eval, .json.gz, a dataset's directory
    print(reading.summary)                          # reads as: verifiers results, 12 rows in 3 groups by example_id
    told = export_file(stored_groups(reading.groups), "dpo", Path("pairs.jsonl"))

Reading goes one way: bytes (`files`, `text`) to rows, a `Format` from rows to attempts (`fields`: prompt and answers,
conversations; `logs`: calls, batches, traces; `evaluations`), their messages of any vendor to OpenAI's (`chat`),
attempts at the same task to groups (`grouping`). `reading` finds the format and tells what is wrong.
Writing: `exported` has messages as typed turns and what stands beside them; `export` writes pairs and conversations
for TRL, and calls the writer of `otel`. Data that a format cannot hold is counted in `Losses`.
"""
