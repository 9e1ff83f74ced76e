"""`POST /v1/completions`: text in, text out, without a chat template.

Each choice carries `token_ids`, `prompt_token_ids`, `token_logprobs`, `policy_version` and `temperature`, as a chat choice.
"""
