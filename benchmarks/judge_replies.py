"""Wrong, refused and right among judge replies: malformed, clean, and those of a file.

    python benchmarks/judge_replies.py --malformed 100000 --file replies.json

Malformed replies are drawn from thought tags, drafts, cuts, corrections, scales and fields; the value of a clean one
stands alone, in many forms and spellings (generators: tests/judge/replies.py). A file holds {"cases": [{"content" or
"message": …, "expected": …}]} with <A>, <B>, <C> for labels and "reject" or {"either": scores} where no number need
come. Exits with 1 when a number is wrong or a clean reply is refused.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the generators are among the tests

from gavel.judge.reply.verdict import VerdictError, read_verdict
from gavel.llm.response import read_message
from tests.judge.replies import REFUSED, REFUSED_LABELS, clean_reply, malformed_reply

Case = tuple[str, list[str], dict[str, float] | None]
"""A reply, the labels that were asked for, and the scores that it means; None = none may come of it."""


def malformed(count: int) -> Iterator[Case]:
    for reply in REFUSED.values():
        yield reply, list(REFUSED_LABELS), None
    for seed in range(count):
        yield malformed_reply(Random(seed))


def clean(count: int) -> Iterator[Case]:
    for seed in range(count):
        yield clean_reply(Random(seed))


def of_file(path: Path) -> Iterator[Case]:
    labels = {"<A>": "K7QX", "<B>": "W3RT", "<C>": "M4TD", "<D>": "DDD9", "<Z>": "ZZZ9"}
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        message: dict[str, Any] = case.get("message", {"content": case.get("content")}) or {}
        text, _ = read_message(message)
        for mark, label in labels.items():
            text = text.replace(mark, label)
        means: Any = case["expected"]
        if isinstance(means, dict):
            means = means["either"]  # type: ignore[index]
        shown = list(labels.values())[:3]
        scores: dict[str, float] | None = None if means == "reject" else dict(zip(shown, means, strict=True))
        yield text, shown, scores


def outcome(case: Case) -> str:
    reply, labels, means = case
    try:
        read = {label: scored.score for label, scored in read_verdict(reply, labels).scores.items()}
    except VerdictError:
        return "refused"
    return "right" if means is not None and read.items() <= means.items() else "wrong"  # a judge may decline a member


def measure(cases: Iterable[Case]) -> dict[str, float]:
    started, counts, meant = time.process_time(), Counter[str](), 0
    for case in cases:
        result = outcome(case)
        counts[result] += 1
        meant += case[2] is not None and result == "refused"
    total = sum(counts.values())
    found = {kind: counts[kind] for kind in ("wrong", "refused", "right")}
    return {
        "replies": total,
        **found,
        "refused though meant": meant,
        "ms each": 1e3 * (time.process_time() - started) / total,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--malformed", type=int, default=10_000)
    parser.add_argument("--clean", type=int, default=10_000)
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    rows = {"malformed": measure(malformed(options.malformed)), "clean": measure(clean(options.clean))}
    if options.file:
        rows["file"] = measure(of_file(options.file))
    for name, row in rows.items():
        print(
            f"{name:10}",
            ", ".join(f"{key} {value:,.4g}" if key == "ms each" else f"{key} {value:,}" for key, value in row.items()),
        )
    sys.exit(any(row["wrong"] for row in rows.values()) or rows["clean"]["refused"] > 0)


if __name__ == "__main__":
    main()
