"""The update of the policy: log-probs, losses, and AdamW over the adapter.

    learner = Learner(policy)
    metrics = learner.step(make_batch(groups, config, policy), config)
    metrics["loss"], metrics["gradient_norm"]

The losses are pure functions over flat tokens. With several processes, `LearnerReplicas` gives the same updates.
"""
