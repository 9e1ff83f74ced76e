"""The judge: scores a group of trajectories relative to each other, with one or more language models.

    judge = Judge(["openai/gpt-5-mini", "ollama/qwen3"], rubric="Solve the task in few steps.")
    judged = await judge.score(group)                   a new group
    judged.trajectories[0].reward                       0.85
    judged.trajectories[0].judgement.standard_error     0.03

Wings, from bottom to top: prompt (what the judge is shown), reply (what it answers), panel (jurors, schedule, votes),
offline (judges without a model), judge.py, audit (how far to trust a judge).
"""
