"""A reply with the log-probabilities of its tokens, as text that a cassette can keep.

    with_logprobs(Reply('{"a": 7}'), response).text
    # {"text": '{"a": 7}', "tokens": [["{\\"", [["{\\"", -0.1], …]], …]}

`tokens`: each sampled token with the likeliest tokens in its place and their natural log-probabilities; None when the
server returned none.
"""

import json
from dataclasses import replace
from typing import Any

from gavel.llm.errors import LlmError
from gavel.llm.refusal_wording import CONTENT_FILTER
from gavel.llm.types import Reply

PARAMS = {"logprobs": True, "top_logprobs": 20}
"""What asks for them; 20 is the most that OpenAI and vLLM give by default."""


WITHOUT_LOGPROBS = "name a server that does, such as vLLM, or take the mode groupwise (--mode)."


def check_has_logprobs(model: str, reply: Reply) -> None:
    """Raises `LlmError` when the server returned no tokens with a reply of `with_logprobs`."""
    if reply.finish_reason != CONTENT_FILTER and json.loads(reply.text)["tokens"] is None:
        raise LlmError(
            f"{model} returned no log-probabilities of tokens.", WITHOUT_LOGPROBS[0].upper() + WITHOUT_LOGPROBS[1:]
        )


def with_logprobs(reply: Reply, response: Any) -> Reply:
    """The reply in LiteLLM's response with its tokens; a refusal stays as it is."""
    if reply.finish_reason == CONTENT_FILTER:
        return reply
    choice = response.choices[0] if response.choices else None
    logprobs: Any = getattr(choice, "logprobs", None)
    content = getattr(logprobs, "content", None)
    tokens = None
    if content:
        tokens = [[each.token, [[top.token, top.logprob] for top in each.top_logprobs or ()]] for each in content]
    return replace(reply, text=json.dumps({"text": reply.text, "tokens": tokens}, ensure_ascii=False))
