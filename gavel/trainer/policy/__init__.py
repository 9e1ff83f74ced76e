"""The policy that is trained: a frozen base model, a LoRA adapter over it, its tokenizer and its chat format.

policy = Policy("embedded/returns-desk", LoraSettings())
logprobs = policy.forward(…)
"""

import logging

# bitsandbytes, which peft imports, warns here on CPUs with bfloat16 products that an optional kernel is not installed.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
