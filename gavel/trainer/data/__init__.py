"""From judged groups to the token sequences of a training step, without torch.

    batch = make_batch(groups, TrainConfig(), policy)
    batch.sequences[0].tokens.token_ids     exactly the ids that were sampled, with their prompts
    batch.sequences[0].advantage            relative to its group
    batch.left_out_groups                   Counter({LeftOut.NO_SIGNAL: 2})

Nothing is rendered or tokenized again. Whatever is not trained is counted under a reason.
"""
