"""The policy that is trained: a frozen base model, a LoRA adapter over it, its tokenizer and its chat format.

policy = Policy("embedded/returns-desk", LoraSettings())
logprobs = policy.forward(…)
"""
