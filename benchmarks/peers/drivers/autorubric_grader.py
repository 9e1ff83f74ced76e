# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false, reportArgumentType=false
"""autorubric: one ordinal criterion of five options, graded for each attempt alone."""

import asyncio
from functools import cache

from autorubric import Criterion, CriterionOption, LLMConfig, Rubric
from autorubric.graders import CriterionGrader
from driver import run

LEVELS = ("very poor", "poor", "fair", "good", "very good")
RUBRIC = Rubric(
    [
        Criterion(
            name="quality",
            requirement="How well does the response reach the goal of the task?",
            options=[CriterionOption(label=level, value=n / 4) for n, level in enumerate(LEVELS)],
        )
    ]
)


@cache
def grader(url, model):
    config = LLMConfig(model=f"openai/{model}", api_base=f"{url}/v1", api_key="none")
    return CriterionGrader(judge_model_config=config, seed=0)


async def ordinal(url, model, task, attempts):
    reports = await asyncio.gather(
        *(RUBRIC.grade(to_grade=attempt, grader=grader(url, model), query=task) for attempt in attempts)
    )
    return [report.score for report in reports]


if __name__ == "__main__":
    run({"ordinal": ordinal})
