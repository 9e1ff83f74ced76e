"""Supervised fine-tuning on demonstrations, as training steps beside those on rewards.

    demonstration = gavel.Trajectory(messages_and_choices=[user_message, assistant_message])
    result = await model.train_sft([demonstration], gavel.SftConfig(learning_rate=2e-4))

`sft_batch` turns messages into the tokens that the policy would have sampled, and these into a training batch.
"""
