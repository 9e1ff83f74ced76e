"""What the judge sees: a group of trajectories as the messages of one call.

    group = with_flags(canonicalize(dict(enumerate(trajectories))))   # each distinct attempt once, with its flags
    markers = draw_markers(group, Random(0))                          # code and labels that occur in no text
    messages, truncated = fit_messages(group, order, markers, rubric, max_tokens=8_000)

`canonical` defines what counts as the same attempt, `flags` and `injection` detect attacks and empty attempts,
`shared_text` finds repeated content, `transcript` renders it behind a fence, `sanitize` makes text safe, `truncate`
makes it fit.
"""
