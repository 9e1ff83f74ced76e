"""What to do about a vLLM server, by what it lacks."""

NO_ADAPTERS = (
    "It must run with --enable-lora, a --max-lora-rank no smaller than the adapter's and "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and see the run directory under the same path; for an adapter of experts "
    "(--lora-experts) with --enable-mixed-moe-lora-format, too."
)
TOO_OLD = "It must be a vLLM that knows return_token_ids, 0.10.2 or newer."
NO_SLEEP = "It must run with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1; or leave sleep off."
NOT_THERE = "Start it, or name the address of one that runs."
GO_ON = "Register the model again: it goes on from the last checkpoint."
