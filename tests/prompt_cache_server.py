"""A judge's server that caches prompts as OpenAI does, and reports it."""

import json
import threading
from typing import Any

from gavel.llm.providers import load_litellm
from tests.endpoint import Answer, Request, labels_in, says
from tests.limits import HANG_SECONDS

SHORTEST, STEP = 1024, 128
"""Tokens of the shortest beginning that is cached, and the unit beyond it."""


def tokens_of(request: Request) -> list[int]:
    """What a server caches: the schema, then the messages."""
    schema = json.dumps(request.get("response_format"))
    texts = [message["content"] for message in request["messages"]]
    return load_litellm().encoding.encode("\n".join([schema, *texts]), disallowed_special=())


class CachingServer:
    """A step of an `Endpoint` that gives every member the same score. A prompt is in the cache once it is answered."""

    def __init__(self, requests_at_once: int = 1) -> None:
        """No request is answered before so many have arrived."""
        self.cached: list[int] = []
        """Cached prompt tokens of each request."""
        self.prompts: list[int] = []
        self._beginnings: set[tuple[int, ...]] = set()
        self._lock = threading.Lock()
        self._arrived = threading.Barrier(requests_at_once)

    def __call__(self, request: Request) -> Answer:
        tokens = tokens_of(request)
        beginnings = [tuple(tokens[:length]) for length in range(SHORTEST, len(tokens) + 1, STEP)]
        with self._lock:
            cached = max((len(one) for one in beginnings if one in self._beginnings), default=0)
            self.cached.append(cached)
            self.prompts.append(len(tokens))
        self._arrived.wait(HANG_SECONDS)
        with self._lock:
            self._beginnings.update(beginnings)
        entries = [{"trajectory_id": label, "explanation": "", "score": 0.5} for label in labels_in(request)]
        usage: dict[str, Any] = {
            "prompt_tokens": len(tokens),
            "completion_tokens": 20,
            "total_tokens": len(tokens) + 20,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        return says(json.dumps({"scores": entries}), usage)
