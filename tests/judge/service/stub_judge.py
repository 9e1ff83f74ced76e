"""A judge model whose scores depend on what it reads and on where it reads it: it shows in what order a group was."""

import hashlib
import json
from typing import Any

from tests.endpoint import Answer, Request, labels_in, says


def by_content_and_position(request: Request) -> Answer:
    """Each attempt's score is drawn from its text and its position in the prompt."""
    prompt = request["messages"][1]["content"]
    entries: list[dict[str, Any]] = []
    for position, label in enumerate(labels_in(request)):
        text = prompt.partition(f"trajectory {label}\n")[2].partition("trajectory ")[0]
        words = " ".join(word for word in text.split() if "worth" in word)
        drawn = int(hashlib.sha256(f"{words} {position}".encode()).hexdigest()[:4], 16)
        entries.append({"trajectory_id": label, "explanation": "drawn", "score": drawn / 0xFFFF})
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    return says(json.dumps({"scores": entries}), usage)
