"""A judge model that takes a moment, and scores by what stands in each attempt."""

import json
import random
import threading
import time
from collections import Counter
from typing import Any

from tests.endpoint import Answer, Request, labels_in, says
from tests.judge.service.in_process import group


class Stub:
    """A judge model that takes a moment, scores by what stands in each attempt, and notes what it is asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Answer:
        with self._lock:
            self.asked[json.dumps(request["messages"], sort_keys=True, separators=(",", ":"))] += 1
        time.sleep(self.seconds)
        prompt = request["messages"][1]["content"]
        entries: list[dict[str, Any]] = []
        for label in labels_in(request):
            text = prompt.partition(f"trajectory {label}\n")[2].partition("trajectory ")[0]
            score = int(text.partition("worth ")[2][:2]) / 100
            entries.append({"trajectory_id": label, "explanation": "by worth", "score": score})
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        return says(json.dumps({"scores": entries}), usage)


def worths(number: int) -> list[int]:
    return random.Random(number).sample(range(10, 100), 3)


def body(number: int) -> dict[str, Any]:
    return group(*(f"answer {number}, worth {worth}" for worth in worths(number)))
