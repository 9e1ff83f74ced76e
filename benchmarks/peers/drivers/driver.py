"""What every driver shares: reads requests, has them scored by one library, writes the results as they come.

A driver runs in the environment of its library, without Gavel: `driver.py` gets the file of requests and the file of
results as arguments. A request is {"id", "variant", "url", "model", "task", "attempts"}, a result {"id", "scores"} or
{"id", "error"}; both are JSON lines. A variant is a way of using the library, by name.
"""

import asyncio
import json
import logging
import sys
from pathlib import Path

AT_ONCE = 8
SECONDS = 90


def run(variants):
    """`variants`: by name, an async (url, model, task, attempts) -> scores, None for an attempt without one."""
    logging.disable(logging.CRITICAL)
    source, target = map(Path, sys.argv[1:3])
    requests = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    with target.open("w", encoding="utf-8") as results:
        asyncio.run(_answer(variants, requests, results))


async def _answer(variants, requests, results):
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(request):
        score = variants[request["variant"]]
        asked = (request["url"], request["model"], request["task"], request["attempts"])
        async with slots:
            try:
                scores = await asyncio.wait_for(score(*asked), SECONDS)
                result = {"id": request["id"], "scores": None if scores is None else list(scores)}
            except Exception as error:  # whatever a library raises is its answer
                result = {"id": request["id"], "error": f"{type(error).__name__}: {error}"[:300]}
        results.write(json.dumps(result) + "\n")
        results.flush()

    await asyncio.gather(*map(one, requests))


def conversation(task, attempt):
    """A task and an answer as messages."""
    return [{"role": "user", "content": task}, {"role": "assistant", "content": attempt}]
