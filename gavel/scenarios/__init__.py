"""Scenarios: tasks for an agent, and the record of its attempts.

    scenario = gavel.Scenario(
        name="desk", system="You run a desk.", tools=[look_up], tasks=[gavel.Task(user="Where is order 7?")]
    )
    task = scenario.sample("train", 1, seed=0)[0]
    group = await gavel.TrajectoryGroup(rollout(model, scenario, task, seed=n) for n in range(4))
    group.trajectories[0].messages()     # OpenAI message dicts; the sampled turns are OpenAI Choices

`trajectory`, `group` and `judgement` are data, `scenario`, `task` and `tools` describe the work, `rollout` is the agent
loop, `gather` runs many rollouts, bounded, and `trajectory_store` keeps them in files.
"""
