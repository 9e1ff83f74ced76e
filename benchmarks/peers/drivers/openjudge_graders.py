# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false, reportArgumentType=false
"""py-openjudge: the GRPO tournament over a listwise grader of two responses, and a pointwise grader."""

from functools import cache, partial

from driver import run
from openjudge.evaluation_strategy.grpo_tournament_evaluation_strategy import GRPOTournamentEvaluationStrategy
from openjudge.graders.llm_grader import GraderMode, LLMGrader
from openjudge.models.openai_chat_model import OpenAIChatModel

PAIR = """Compare two responses to a query and rank them by quality, the best with rank 1.

Query: {query}

Response 1: {response_1}

Response 2: {response_2}

Answer with JSON: {{"reason": "...", "rank": [rank of response 1, rank of response 2]}}"""


@cache
def pair_grader(url, model):
    endpoint = OpenAIChatModel(model=model, base_url=f"{url}/v1", api_key="none")
    return LLMGrader(model=endpoint, name="pair", mode=GraderMode.LISTWISE, template=PAIR)


async def tournament(url, model, task, attempts, debiased):
    strategy = GRPOTournamentEvaluationStrategy(debiased=debiased)
    results = await strategy.execute(pair_grader(url, model).aevaluate, query=task, responses=attempts)
    return [result.score for result in results]


if __name__ == "__main__":
    run({"tournament": partial(tournament, debiased=False), "debiased": partial(tournament, debiased=True)})
