"""The training loop of a scenario.

    await model.register(backend)
    judge = gavel.Judge("openai/gpt-5-mini", rubric=scenario.rubric)
    loop = gavel.LoopConfig(steps=50, reward={"judge": 1.0, "hand": 0.2}, max_staleness=1)
    await train_scenario(model, scenario, judge, loop, gavel.TrainConfig())

`train_loop` is the loop, `group_maker` rolls out a group and computes what is trained on, `prefetch` makes the groups
of the next steps within the bounds of staleness, `evaluation` measures held-out tasks, and `watchdog` ends a run that
does not progress. `evolve` explores and imitates in turns.
"""
