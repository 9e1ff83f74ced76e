"""The GRPO trainer for LoRA adapters: model, data, policy, sampling engines, learner and training loop.

backend = LocalBackend()
model = TrainableModel(name="clerk", project="desk", base_model="embedded/returns-desk")
await model.register(backend)
await model.train(groups)
"""

import logging

# On CPUs with AVX512-BF16, bitsandbytes warns when peft imports it that an optional kernel, unused here, is missing.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
