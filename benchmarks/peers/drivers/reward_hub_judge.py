# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false, reportArgumentType=false
"""reward-hub: its pointwise and groupwise judges; a groupwise judge selects the better half of the group.

The package's `__init__` imports torch for its local reward models, which its LLM judges do not use; an empty module in
its place leaves these as they are.
"""

import importlib.util
import sys
from functools import cache, partial
from types import ModuleType

from driver import conversation, run

found = importlib.util.find_spec("reward_hub")
package = ModuleType("reward_hub")
package.__path__ = list(found.submodule_search_locations)
sys.modules["reward_hub"] = package

from reward_hub.llm_judge import create_groupwise_judge, create_pointwise_judge  # noqa: E402


@cache
def judge(create, url, model):
    return create(f"openai/{model}", "overall_quality", api_base=f"{url}/v1", api_key="none")


async def score(url, model, task, attempts, create, **more):
    made = judge(create, url, model)
    return await made.ascore([conversation(task, attempt) for attempt in attempts], **more)


async def half(url, model, task, attempts):
    return await score(url, model, task, attempts, create_groupwise_judge, top_n=len(attempts) // 2)


if __name__ == "__main__":
    run({"pointwise": partial(score, create=create_pointwise_judge), "groupwise": half})
