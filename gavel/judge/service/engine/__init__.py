"""Accepts groups, has them judged, and answers. Every route goes through `Engine`.

record = await engine.score(ScoreRequest(trajectories=[...]))

engine      accepts and answers                        worker     judges what this process has leased
rendezvous  groups whose members arrive one by one     waiters    who waits for which judgement
judges      the judges that requests may ask for       admission  keys, rates and budgets as enforced
metrics     what a process counts                      tracing    its OpenTelemetry spans
page_session  who has signed in to the pages         steady_clock  the time that old judgements go by
"""
