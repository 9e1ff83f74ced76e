"""Accepts groups, has them judged, and answers. Every route goes through `Engine`.

record = await engine.score(ScoreRequest(trajectories=[...]))

engine      accepts and answers                        worker     judges what this process has leased
rendezvous  groups whose members arrive one by one     admission  who asks: keys, rates and budgets as enforced
judges      the judges that requests may ask for       metrics    what a process counts
tracing     its OpenTelemetry spans
"""
