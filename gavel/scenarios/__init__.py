"""What an agent is asked and what it did: scenarios, tools, rollouts, trajectories and groups.

    scenario = Scenario("desk", system="You run the desk.", tools=[look_up], tasks=[Task(user="Where is order 7?")])
    members = [rollout(model, scenario, task, seed=seed) for seed in range(8)]
    (group,) = await gather_trajectory_groups([TrajectoryGroup(members)], after_each=judge.score)

A trajectory keeps every sampled choice with its token ids, and survives JSON unchanged. A failure is recorded on its
member or its group and never raised out of the others.
"""
