# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false, reportArgumentType=false
"""openreward.judging: pairs in a knockout or round robin, and the judge of a whole group in one call."""

from functools import cache, partial
from zlib import crc32

from driver import run
from openreward.chat_backends.openai import OpenAIChatBackend, OpenAIChatConfig
from openreward.environments.types import Message
from openreward.judging import GroupwiseJudge, PairwiseJudge, rank_group


@cache
def backend(url):
    return OpenAIChatBackend(config=OpenAIChatConfig(api_key="none", base_url=f"{url}/v1"))


def context(task):
    return [Message.model_validate({"role": "user", "blocks": [{"type": "text", "text": task}]})]


async def pairs(url, model, task, attempts, topology, both_orders=False):
    seed = crc32(attempts[0].encode())  # every group is shuffled in its own way
    judge = PairwiseJudge(model=model, backend=backend(url), both_orders=both_orders, seed=seed)
    return await rank_group(attempts, judge, context=context(task), topology=topology, seed=seed)


async def group(url, model, task, attempts):
    judge = GroupwiseJudge(model=model, backend=backend(url), seed=crc32(attempts[0].encode()))
    return await judge.score(attempts, context=context(task))


if __name__ == "__main__":
    run(
        {
            "knockout": partial(pairs, topology="knockout"),
            "roundrobin": partial(pairs, topology="round_robin"),
            "bothorders": partial(pairs, topology="round_robin", both_orders=True),
            "groupwise": group,
        }
    )
