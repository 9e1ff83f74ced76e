"""The policy in training: a frozen base model, a LoRA adapter over it, its tokenizer and its chat format.

policy = Policy("embedded/returns-desk", LoraSettings(rank=8))
policy.save_adapter(directory)          a PEFT adapter that any other program can load
policy.renderer.render_ids(messages)    the exact token ids of a conversation
"""

import logging

# bitsandbytes, which peft imports, warns here on CPUs with bfloat16 products that an optional kernel is not installed.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
