"""The panel: which juror sees which members in which order, and how the votes become scores.

    mode = choose_mode("groupwise", has_anchors=False)
    schedule = mode.schedule(4, counts=[2], seed="0", fixed={}, max_shown=lambda: 10)   two orders for one juror
    ballots = await Poll(jurors, clients, rubric, 2, {}).poll(group, schedule, "0")
    judgements = judge_members(trajectories, group, ballots, quorum=0.5)

In the order of a call: juror, modes, polling, aggregate (with bradley_terry and anchors), judgements.
"""
