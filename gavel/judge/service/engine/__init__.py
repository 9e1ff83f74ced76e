"""The engine: accepts groups, has them judged, and answers. Every route goes through `Engine`.

record = await engine.result(await engine.submit(ScoreRequest(trajectories=[...])))

engine     accepts and answers, by which judge                  worker     judges what this process has leased
admission  who asks: keys, rates and budgets as enforced        telemetry  what is counted and traced
"""
