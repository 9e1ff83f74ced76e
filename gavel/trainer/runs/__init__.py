"""The files of a run: its directory, checkpoints and metrics.

    run = RunDirectory(runs_root(), "demo", "clerk")      locked for this process
    run.describe({"base_model": "embedded/returns-desk"})
    run.metrics.log(1, "train", {"reward": 0.5})
    run.checkpoints.save(1, policy.save_adapter)

Every write is append-only or atomic, so a killed run resumes from its last complete checkpoint.
"""
