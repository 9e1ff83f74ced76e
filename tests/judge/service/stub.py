"""Judge models that score by what stands in each attempt."""

import hashlib
import json
import random
import threading
import time
from collections import Counter
from typing import Any

from tests.endpoint import Answer, Request, verdict
from tests.judge.service.in_process import group


def by_content_and_position(request: Request) -> Answer:
    """Each attempt's score is drawn from its text and its position: it shows in what order a group was."""

    def drawn(text: str, position: int) -> float:
        words = " ".join(word for word in text.split() if "worth" in word)
        return int(hashlib.sha256(f"{words} {position}".encode()).hexdigest()[:4], 16) / 0xFFFF

    return verdict(request, drawn, "drawn")


class Stub:
    """A judge model that takes a moment, and notes what it is asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: Counter[str] = Counter()
        """By schema and messages, as JSON."""
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Answer:
        schema = request["response_format"]["json_schema"]["schema"]
        with self._lock:
            self.asked[json.dumps([schema, request["messages"]], sort_keys=True)] += 1
        time.sleep(self.seconds)
        return verdict(request, lambda text, _: int(text.partition("worth ")[2][:2]) / 100, "by worth")


def worths(number: int) -> list[int]:
    return random.Random(number).sample(range(10, 100), 3)


def expected(number: int) -> list[float]:
    return [worth / 100 for worth in worths(number)]


def body(number: int) -> dict[str, Any]:
    return group(*(f"answer {number}, worth {worth}" for worth in worths(number)))
