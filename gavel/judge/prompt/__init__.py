"""What the judge sees: a group of trajectories as the messages of one call.

    group = with_flags(canonicalize(dict(enumerate(trajectories))))   # each distinct attempt once, with its flags
    markers = draw_markers(group, Random(0))                          # code and labels that occur in no text
    prompt = GroupPrompts(group, markers, rubric, request).fit(order, max_tokens=8_000)  # its messages, truncated

The way of a message: `provider_formats` reads it as events, `canonical_group` defines what counts as the same attempt,
`flags` detects attacks and empty attempts, `fenced_transcript` shows repeated content once and renders the text behind
a fence, `sanitize` redacts it and makes it safe, `call_prompt` makes the messages of one call of it, and `truncate`
makes them fit.
"""
