"""A reply with the log-probabilities of its tokens, as text that a cassette can keep.

    with_logprobs('{"a": 7}', response)
    # {"text": '{"a": 7}', "tokens": [["{\\"", [["{\\"", -0.1], …]], …]}

`tokens`: each sampled token with the likeliest tokens in its place and their natural log-probabilities; None when the
server returned none.
"""

import json
from typing import Any

PARAMS = {"logprobs": True, "top_logprobs": 20}
"""What asks for them; 20 is the most that OpenAI and vLLM give by default."""


def with_logprobs(text: str, response: Any) -> str:
    """The text of LiteLLM's response with its tokens."""
    choice = response.choices[0] if response.choices else None
    logprobs: Any = getattr(choice, "logprobs", None)
    content = getattr(logprobs, "content", None)
    tokens = None
    if content:
        tokens = [[each.token, [[top.token, top.logprob] for top in each.top_logprobs or ()]] for each in content]
    return json.dumps({"text": text, "tokens": tokens}, ensure_ascii=False)
